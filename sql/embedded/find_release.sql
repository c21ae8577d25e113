-- Whether the unit of a reservation is going back already.
-- ?1 reservation_id -> reason
SELECT reason FROM release_outbox WHERE reservation_id = ?1
