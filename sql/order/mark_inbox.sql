-- Settles the message. Affects exactly 1 row.
-- $1 status text (COMPLETED | REJECTED), $2 error_code text ('' = none), $3 order_id bigint? (null = leave),
-- $4 consumer_group text, $5 message_id uuid
UPDATE consumer_inbox
SET status = $1::text,
    last_error_code = NULLIF($2::text, ''),
    order_id = COALESCE($3::bigint, order_id),
    processed_at = clock_timestamp()
WHERE consumer_group = $4::text
  AND message_id = $5::uuid
  AND status = 'PROCESSING'
