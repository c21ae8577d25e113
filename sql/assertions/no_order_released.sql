-- No reservation has both an order and a release.
SELECT r.reservation_id, o.order_id
FROM release_outbox r
JOIN orders o USING (reservation_id);
