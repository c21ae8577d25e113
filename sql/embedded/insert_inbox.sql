-- Opens a message. Affects 1 row, or 0 if it is known.
-- ?1 consumer_group, ?2 message_id, ?3 request_id, ?4 reservation_id, ?5 order_id, ?6 now
INSERT INTO consumer_inbox (consumer_group, message_id, request_id, reservation_id, order_id, status, received_at)
VALUES (?1, ?2, ?3, ?4, ?5, 'PROCESSING', ?6)
ON CONFLICT (consumer_group, message_id) DO NOTHING
