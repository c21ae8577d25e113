-- Everything the store has settled, for the start.
-- ?1 consumer_group
-- -> request_id, status, order_id, last_error_code
SELECT request_id, status, order_id, last_error_code
FROM consumer_inbox
WHERE consumer_group = ?1
