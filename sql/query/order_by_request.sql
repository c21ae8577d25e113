-- What PostgreSQL knows of a request, for its owner only: an order, or the rejection that gave its unit back. At most one row;
-- none: not processed yet, unknown, or not this user's.
-- $1 activity_id bigint, $2 sku_id bigint, $3 request_id uuid, $4 user_id bigint
-- -> state text (CREATED | REJECTED), order_id bigint?, reservation_id uuid, code text?, order_status text?, updated_at timestamptz
-- The inbox has no index by request; its rejections are found through release_outbox, which has one and stays small.
SELECT 'CREATED' AS state, order_id, reservation_id, NULL::text AS code, status::text AS order_status, updated_at
FROM orders
WHERE request_id = $3::uuid
  AND activity_id = $1::bigint
  AND sku_id = $2::bigint
  AND user_id = $4::bigint
UNION ALL
SELECT 'REJECTED', order_id, reservation_id, reason::text, NULL, created_at
FROM release_outbox
WHERE request_id = $3::uuid
  AND activity_id = $1::bigint
  AND sku_id = $2::bigint
  AND user_id = $4::bigint
LIMIT 1
