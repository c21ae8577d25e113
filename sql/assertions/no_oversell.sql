-- No SKU has sold more than it had (reference 13.6).
SELECT activity_id, sku_id, total_stock, sold_stock
FROM seckill_inventory
WHERE sold_stock > total_stock;
