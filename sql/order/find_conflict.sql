-- The order in the way of insert_order.sql, the most telling one if there are several. One row.
-- $1 order_id bigint, $2 request_id uuid, $3 reservation_id uuid, $4 activity_id bigint, $5 sku_id bigint, $6 user_id bigint
-- -> relation text, order_id bigint, request_id uuid, reservation_id uuid, activity_id bigint, sku_id bigint, user_id bigint
-- relation: SAME        the very same operation: the order of this message is there
--           USER        the user's one order of this SKU, by another operation
--           IDENTIFIER  an id of the message belongs to somebody else's order
SELECT relation, order_id, request_id, reservation_id, activity_id, sku_id, user_id
FROM (
    SELECT CASE
               WHEN activity_id = $4::bigint AND sku_id = $5::bigint AND user_id = $6::bigint THEN
                   CASE
                       WHEN order_id = $1::bigint AND request_id = $2::uuid AND reservation_id = $3::uuid THEN 'SAME'
                       ELSE 'USER'
                   END
               ELSE 'IDENTIFIER'
           END AS relation,
           order_id, request_id, reservation_id, activity_id, sku_id, user_id
    FROM orders
    WHERE order_id = $1::bigint
       OR request_id = $2::uuid
       OR reservation_id = $3::uuid
       OR (activity_id = $4::bigint AND sku_id = $5::bigint AND user_id = $6::bigint)
) AS candidates
ORDER BY array_position(ARRAY['SAME', 'USER', 'IDENTIFIER'], relation), order_id
LIMIT 1
