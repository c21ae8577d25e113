-- Puts a SKU on the list of sales and gives it its stock: both rows or neither. Rows that are there stay as they are.
-- $1 activity_id bigint, $2 sku_id bigint, $3 start_at timestamptz, $4 end_at timestamptz, $5 expire_at timestamptz,
-- $6 total_stock integer
-- -> activities bigint, inventories bigint (1 each: made; 0: there already, compare with load.sql)
WITH activity AS (
    INSERT INTO seckill_activity (activity_id, sku_id, start_at, end_at, expire_at)
    VALUES ($1::bigint, $2::bigint, $3::timestamptz, $4::timestamptz, $5::timestamptz)
    ON CONFLICT DO NOTHING
    RETURNING 1
), inventory AS (
    INSERT INTO seckill_inventory (activity_id, sku_id, total_stock)
    VALUES ($1::bigint, $2::bigint, $6::integer)
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM activity) AS activities, (SELECT count(*) FROM inventory) AS inventories
