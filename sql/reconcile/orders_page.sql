-- The orders of a SKU, by user. At most $4 rows, users beyond $3 (0: from the first on).
-- $1 activity_id bigint, $2 sku_id bigint, $3 after_user_id bigint, $4 limit bigint
-- -> user_id bigint, request_id uuid, reservation_id uuid, order_id bigint, created_at timestamptz
SELECT user_id, request_id, reservation_id, order_id, created_at
FROM orders
WHERE activity_id = $1::bigint
  AND sku_id = $2::bigint
  AND user_id > $3::bigint
ORDER BY user_id
LIMIT $4::bigint
