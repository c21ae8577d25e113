-- Every committed inbox row has its outcome; PROCESSING never outlives its transaction (reference 13.6).
SELECT consumer_group, message_id, status
FROM consumer_inbox
WHERE status NOT IN ('COMPLETED', 'REJECTED')
   OR processed_at IS NULL;
