-- Settles a message. Affects exactly 1 row.
-- ?1 consumer_group, ?2 message_id, ?3 status, ?4 error_code or null, ?5 order_id or null (leave), ?6 now
UPDATE consumer_inbox
SET status = ?3, last_error_code = ?4, order_id = coalesce(?5, order_id), processed_at = ?6
WHERE consumer_group = ?1 AND message_id = ?2 AND status = 'PROCESSING'
