-- What PostgreSQL has decided about reservations; one row for each of them that has an order or a release.
-- $1 reservation_ids uuid[]
-- -> reservation_id uuid, ordered boolean, applied boolean (of a release: whether Redis has given the unit back)
SELECT reservation_id, TRUE AS ordered, FALSE AS applied
FROM orders
WHERE reservation_id = ANY ($1::uuid[])
UNION ALL
SELECT reservation_id, FALSE, applied_at IS NOT NULL
FROM release_outbox
WHERE reservation_id = ANY ($1::uuid[])
