-- Whether the unit of a reservation is going back already; then no order may take it. At most one row.
-- $1 reservation_id uuid
-- -> reason text
SELECT reason::text
FROM release_outbox
WHERE reservation_id = $1::uuid
