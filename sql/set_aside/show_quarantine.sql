-- Messages in quarantine by id, in the columns of list_quarantine.sql.
-- $1 ids bigint[]
SELECT q.id, q.state::text, q.reason::text, coalesce(q.detail, '')::text, q.broker_message_id::text, q.delivery_attempt,
       q.message_id, q.reservation_id, q.created_at,
       EXISTS (SELECT 1 FROM release_outbox r WHERE r.reservation_id = q.reservation_id) AS released,
       q.body, q.tag::text, q.message_key::text
FROM quarantine q
WHERE q.id = ANY ($1::bigint[])
ORDER BY q.id
