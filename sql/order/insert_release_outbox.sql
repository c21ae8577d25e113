-- Decides that the unit of a reservation goes back. Affects 1 row, or 0 if that is decided already, or if the reservation
-- has an order (its unit is sold).
-- $1 reservation_id uuid, $2 request_id uuid, $3 message_id uuid, $4 activity_id bigint, $5 sku_id bigint, $6 user_id bigint,
-- $7 order_id bigint? (as in consumer_inbox), $8 reason text
INSERT INTO release_outbox (reservation_id, request_id, message_id, activity_id, sku_id, user_id, order_id, reason)
SELECT $1::uuid, $2::uuid, $3::uuid, $4::bigint, $5::bigint, $6::bigint, $7::bigint, $8::text
WHERE NOT EXISTS (SELECT 1 FROM orders WHERE reservation_id = $1::uuid)
ON CONFLICT (reservation_id) DO NOTHING
