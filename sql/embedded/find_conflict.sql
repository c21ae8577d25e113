-- The order in the way of insert_order.sql, the most telling one if there are several. Relations as in sql/order/find_conflict.sql.
-- ?1 order_id, ?2 request_id, ?3 reservation_id, ?4 activity_id, ?5 sku_id, ?6 user_id
-- -> relation (0 SAME, 1 USER, 2 IDENTIFIER), order_id
SELECT CASE
           WHEN activity_id = ?4 AND sku_id = ?5 AND user_id = ?6 THEN
               CASE WHEN order_id = ?1 AND request_id = ?2 AND reservation_id = ?3 THEN 0 ELSE 1 END
           ELSE 2
       END AS relation,
       order_id
FROM orders
WHERE order_id = ?1
   OR request_id = ?2
   OR reservation_id = ?3
   OR (activity_id = ?4 AND sku_id = ?5 AND user_id = ?6)
ORDER BY relation, order_id
LIMIT 1
