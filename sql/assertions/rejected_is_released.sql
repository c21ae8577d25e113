-- Every REJECTED message gives its unit back by exactly one release, unless its reservation is the one that has an order.
SELECT i.consumer_group, i.message_id, i.reservation_id, i.last_error_code
FROM consumer_inbox i
WHERE i.status = 'REJECTED'
  AND (SELECT count(*) FROM release_outbox r WHERE r.reservation_id = i.reservation_id)
      + (SELECT count(*) FROM orders o WHERE o.reservation_id = i.reservation_id) <> 1;
