-- Somebody has decided about a message in quarantine. Affects 1 row, or 0 if that had been decided before.
-- $1 id bigint, $2 state text (REPLAYED | DISCARDED)
UPDATE quarantine
SET state = $2::text,
    updated_at = clock_timestamp()
WHERE id = $1::bigint
  AND state = 'OPEN'
