-- The order. Affects 1 row, or 0 if one of its ids, or the user's one order of the SKU, is taken.
-- ?1 order_id, ?2 request_id, ?3 reservation_id, ?4 activity_id, ?5 sku_id, ?6 user_id, ?7 now
INSERT INTO orders (order_id, request_id, reservation_id, activity_id, sku_id, user_id, status, created_at, updated_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'CREATED', ?7, ?7)
ON CONFLICT DO NOTHING
