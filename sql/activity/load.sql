-- A sale and its stock. At most one row.
-- $1 activity_id bigint, $2 sku_id bigint
-- -> start_at timestamptz, end_at timestamptz, expire_at timestamptz, state text, generation bigint, total_stock integer,
--    sold_stock integer
SELECT a.start_at, a.end_at, a.expire_at, a.state::text, a.generation, i.total_stock, i.sold_stock
FROM seckill_activity a
JOIN seckill_inventory i USING (activity_id, sku_id)
WHERE activity_id = $1::bigint
  AND sku_id = $2::bigint
