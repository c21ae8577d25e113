-- Its stock, untouched when it is there already.
-- ?1 activity_id, ?2 sku_id, ?3 total_stock
INSERT INTO seckill_inventory (activity_id, sku_id, total_stock)
VALUES (?1, ?2, ?3)
ON CONFLICT (activity_id, sku_id) DO NOTHING
