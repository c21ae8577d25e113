-- Takes deduct_stock.sql back. Affects exactly 1 row.
-- ?1 activity_id, ?2 sku_id, ?3 now
UPDATE seckill_inventory
SET sold_stock = sold_stock - 1, version = version + 1, updated_at = ?3
WHERE activity_id = ?1 AND sku_id = ?2 AND sold_stock > 0
