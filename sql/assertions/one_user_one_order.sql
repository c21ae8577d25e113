-- Nobody has two live orders of a SKU (reference 13.6).
SELECT activity_id, sku_id, user_id, count(*) AS orders
FROM orders
WHERE status IN ('CREATED', 'PAYING', 'PAID')
GROUP BY activity_id, sku_id, user_id
HAVING count(*) > 1;
