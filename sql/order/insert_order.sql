-- The order. Affects 1 row, or 0 if one of its ids, or the user's one order of the SKU, is taken: see find_conflict.sql.
-- $1 order_id bigint, $2 request_id uuid, $3 reservation_id uuid, $4 activity_id bigint, $5 sku_id bigint, $6 user_id bigint
INSERT INTO orders (
    order_id, request_id, reservation_id, activity_id, sku_id, user_id, status, created_at, updated_at
)
VALUES (
    $1::bigint, $2::uuid, $3::uuid, $4::bigint, $5::bigint, $6::bigint, 'CREATED', clock_timestamp(), clock_timestamp()
)
ON CONFLICT DO NOTHING
