-- The batch path: N messages of one SKU, all or nothing, one row each in input order (migrations 0002 and 0005 say the rest).
-- Outside a transaction block: it commits at Sync. SK001 and 23505: nothing happened, give each message its own transaction.
-- $1 consumer_group text, $2 activity_id bigint, $3 sku_id bigint, $4 message_ids uuid[], $5 request_ids uuid[],
-- $6 reservation_ids uuid[], $7 order_ids bigint[], $8 user_ids bigint[]
-- -> ordinal integer, outcome text (CREATED | DUPLICATE), inbox_status text, order_id bigint?, error_code text?, steps_us bigint[3]? (first row)
SELECT ordinal, outcome, inbox_status, order_id, error_code, steps_us
FROM seckill_order_batch($1::text, $2::bigint, $3::bigint, $4::uuid[], $5::uuid[], $6::uuid[], $7::bigint[], $8::bigint[])
