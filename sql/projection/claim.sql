-- The next outcomes to show, for one projector at a time; nothing is written when there are none. At most $2 rows.
-- $1 consumer_group text, $2 limit bigint, $3 lag_ms bigint: rows of the last so many milliseconds are left alone, because
-- the transaction of an earlier one may still be open, $4 lease_ms bigint
-- -> processed_at timestamptz, message_id uuid, status text, error_code text?, order_id bigint?, request_id uuid,
--    reservation_id uuid, activity_id bigint?, sku_id bigint?, user_id bigint? (the last three null: nobody to show it to)
WITH due AS (
    SELECT i.processed_at, i.message_id, i.status, i.last_error_code, i.order_id, i.request_id, i.reservation_id
    FROM projection_cursor c
    JOIN consumer_inbox i
      ON i.consumer_group = c.consumer_group
     AND i.status IN ('COMPLETED', 'REJECTED')
     AND i.processed_at >= c.processed_at
     AND (i.processed_at, i.message_id) > (c.processed_at, c.message_id)
    WHERE c.consumer_group = $1::text
      AND c.leased_until <= clock_timestamp()
      AND i.processed_at < clock_timestamp() - make_interval(secs => $3::bigint / 1000.0)
    ORDER BY i.processed_at, i.message_id
    LIMIT $2::bigint
), leased AS (
    UPDATE projection_cursor
    SET leased_until = clock_timestamp() + make_interval(secs => $4::bigint / 1000.0)
    WHERE consumer_group = $1::text
      AND leased_until <= clock_timestamp()
      AND EXISTS (SELECT 1 FROM due)
    RETURNING 1
)
SELECT d.processed_at, d.message_id, d.status::text, d.last_error_code::text, d.order_id, d.request_id, d.reservation_id,
       coalesce(o.activity_id, r.activity_id), coalesce(o.sku_id, r.sku_id), coalesce(o.user_id, r.user_id)
FROM due d
CROSS JOIN leased
LEFT JOIN orders o
  ON d.status = 'COMPLETED'
 AND o.order_id = d.order_id
LEFT JOIN release_outbox r
  ON d.status = 'REJECTED'
 AND r.reservation_id = d.reservation_id
ORDER BY d.processed_at, d.message_id
