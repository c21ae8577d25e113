-- Releases that are due, each to one instance: the row comes again after a pause that doubles with every try, unless
-- applied.sql takes it out. At most $1 rows, longest due first.
-- $1 limit bigint
-- -> id bigint, activity_id bigint, sku_id bigint, reservation_id uuid, request_id uuid, user_id bigint, order_id bigint?,
--    reason text
UPDATE release_outbox AS r
SET attempts = r.attempts + 1,
    next_attempt_at = clock_timestamp() + make_interval(secs => 2 ^ least(r.attempts + 1, 8))
FROM (
    SELECT id
    FROM release_outbox
    WHERE applied_at IS NULL
      AND next_attempt_at <= clock_timestamp()
    ORDER BY next_attempt_at
    LIMIT $1::bigint
    FOR UPDATE SKIP LOCKED
) AS due
WHERE r.id = due.id
RETURNING r.id, r.activity_id, r.sku_id, r.reservation_id, r.request_id, r.user_id, r.order_id, r.reason::text
