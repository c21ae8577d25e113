-- Decides that the unit of a reservation goes back, unless that is decided or the reservation has an order.
-- ?1 reservation_id, ?2 request_id, ?3 message_id, ?4 activity_id, ?5 sku_id, ?6 user_id, ?7 order_id or null, ?8 reason
INSERT INTO release_outbox (reservation_id, request_id, message_id, activity_id, sku_id, user_id, order_id, reason)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
WHERE NOT EXISTS (SELECT 1 FROM orders WHERE reservation_id = ?1)
ON CONFLICT (reservation_id) DO NOTHING
