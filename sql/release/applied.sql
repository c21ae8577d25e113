-- Redis has given these units back. Safe to repeat.
-- $1 ids bigint[]
UPDATE release_outbox
SET applied_at = clock_timestamp()
WHERE id = ANY ($1::bigint[])
  AND applied_at IS NULL
