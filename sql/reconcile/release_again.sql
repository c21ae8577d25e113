-- Releases that Redis does not know of after all: they are due again. Harmless for those it knows.
-- $1 reservation_ids uuid[]
UPDATE release_outbox
SET applied_at = NULL,
    next_attempt_at = clock_timestamp()
WHERE reservation_id = ANY ($1::uuid[])
