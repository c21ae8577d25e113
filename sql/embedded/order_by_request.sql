-- What the store knows of a request, for its owner only. At most one row.
-- ?1 activity_id, ?2 sku_id, ?3 request_id, ?4 user_id
-- -> order_id, reservation_id, error_code (null: an order)
SELECT order_id, reservation_id, NULL AS error_code
FROM orders
WHERE request_id = ?3 AND activity_id = ?1 AND sku_id = ?2 AND user_id = ?4
UNION ALL
SELECT order_id, reservation_id, reason
FROM release_outbox
WHERE request_id = ?3 AND activity_id = ?1 AND sku_id = ?2 AND user_id = ?4
LIMIT 1
