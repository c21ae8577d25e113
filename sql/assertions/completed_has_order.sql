-- Every COMPLETED message has the order it stands for.
SELECT i.consumer_group, i.message_id, i.order_id
FROM consumer_inbox i
LEFT JOIN orders o
  ON o.order_id = i.order_id
 AND o.request_id = i.request_id
 AND o.reservation_id = i.reservation_id
WHERE i.status = 'COMPLETED'
  AND o.order_id IS NULL;
