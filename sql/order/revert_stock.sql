-- Undoes deduct_stock.sql inside the same transaction. Affects exactly 1 row.
-- $1 activity_id bigint, $2 sku_id bigint
UPDATE seckill_inventory
SET sold_stock = sold_stock - 1,
    version = version + 1,
    updated_at = clock_timestamp()
WHERE activity_id = $1::bigint
  AND sku_id = $2::bigint
  AND sold_stock > 0
