-- Every order came from a COMPLETED message.
SELECT o.order_id, o.reservation_id
FROM orders o
WHERE NOT EXISTS (
    SELECT 1
    FROM consumer_inbox i
    WHERE i.status = 'COMPLETED'
      AND i.order_id = o.order_id
      AND i.reservation_id = o.reservation_id
);
