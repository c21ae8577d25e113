-- A rejection says why, a completion has no error.
SELECT consumer_group, message_id, status, last_error_code
FROM consumer_inbox
WHERE (status = 'REJECTED') <> (last_error_code IS NOT NULL);
