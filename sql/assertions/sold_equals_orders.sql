-- Every unit counted as sold has one order and the other way round, SKU by SKU.
SELECT activity_id, sku_id, coalesce(i.sold_stock, 0) AS sold_stock, coalesce(o.orders, 0) AS orders
FROM seckill_inventory i
FULL JOIN (
    SELECT activity_id, sku_id, count(*) AS orders
    FROM orders
    GROUP BY activity_id, sku_id
) o USING (activity_id, sku_id)
WHERE coalesce(i.sold_stock, 0) <> coalesce(o.orders, 0);
