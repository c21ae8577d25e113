-- Which of these messages have an outcome, and which.
-- $1 consumer_group text, $2 message_ids uuid[]
-- -> message_id uuid, status text
SELECT message_id, status::text
FROM consumer_inbox
WHERE consumer_group = $1::text
  AND message_id = ANY ($2::uuid[])
