-- What became of a message. At most one row.
-- ?1 consumer_group, ?2 message_id
-- -> status, order_id, last_error_code, request_id, reservation_id
SELECT status, order_id, last_error_code, request_id, reservation_id
FROM consumer_inbox
WHERE consumer_group = ?1 AND message_id = ?2
