-- The outcome of a known message, and what it was about. One row.
-- $1 consumer_group text, $2 message_id uuid
-- -> status text, order_id bigint?, last_error_code text?, request_id uuid, reservation_id uuid
SELECT status::text, order_id, last_error_code::text, request_id, reservation_id
FROM consumer_inbox
WHERE consumer_group = $1::text
  AND message_id = $2::uuid
