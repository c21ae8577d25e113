-- Opens the transaction of a message. Affects 1 row, or 0 if the message is known (after waiting for its transaction).
-- $1 consumer_group text, $2 message_id uuid, $3 request_id uuid, $4 reservation_id uuid, $5 order_id bigint
INSERT INTO consumer_inbox (consumer_group, message_id, request_id, reservation_id, order_id, status, received_at)
VALUES ($1::text, $2::uuid, $3::uuid, $4::uuid, $5::bigint, 'PROCESSING', clock_timestamp())
ON CONFLICT (consumer_group, message_id) DO NOTHING
