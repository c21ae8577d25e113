-- Everything up to this row is shown. Never moves back. Affects 1 row, or 0 when another projector is further.
-- $1 consumer_group text, $2 processed_at timestamptz, $3 message_id uuid
UPDATE projection_cursor
SET processed_at = $2::timestamptz,
    message_id = $3::uuid,
    leased_until = '-infinity'
WHERE consumer_group = $1::text
  AND (processed_at, message_id) < ($2::timestamptz, $3::uuid)
