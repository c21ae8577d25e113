-- Messages in quarantine, oldest first. At most $4 rows.
-- $1 state text ('' = any), $2 reason text ('' = any), $3 ids bigint[] (empty = any), $4 limit bigint
-- -> id bigint, state text, reason text, detail text, broker_message_id text, delivery_attempt integer, message_id uuid?,
--    reservation_id uuid?, created_at timestamptz, released boolean (its unit is going or has gone back), body bytea, tag text?,
--    message_key text?
SELECT q.id, q.state::text, q.reason::text, coalesce(q.detail, '')::text, q.broker_message_id::text, q.delivery_attempt,
       q.message_id, q.reservation_id, q.created_at,
       EXISTS (SELECT 1 FROM release_outbox r WHERE r.reservation_id = q.reservation_id) AS released,
       q.body, q.tag::text, q.message_key::text
FROM quarantine q
WHERE ($1::text = '' OR q.state = $1::text)
  AND ($2::text = '' OR q.reason = $2::text)
  AND (cardinality($3::bigint[]) = 0 OR q.id = ANY ($3::bigint[]))
ORDER BY q.id
LIMIT $4::bigint
