-- A micro-batch of at most 100 attempts, in one statement. Best on a connection with synchronous_commit = off: the log may
-- lose its tail, and never delays an order. Affects as many rows as the arrays are long.
-- $1 consumer_group text, $2 worker text, $3 message_ids uuid[] (elements may be null), $4 broker_message_ids text[],
-- $5 delivery_attempts integer[], $6 outcomes text[], $7 error_codes text[] ('' = none), $8 durations_us bigint[],
-- $9 finished_at timestamptz[]
INSERT INTO consumer_attempt_log (
    consumer_group, worker, message_id, broker_message_id, delivery_attempt, outcome, error_code, duration_us, finished_at
)
SELECT $1::text, $2::text, a.message_id, a.broker_message_id, a.delivery_attempt, a.outcome, NULLIF(a.error_code, ''),
       a.duration_us, a.finished_at
FROM unnest($3::uuid[], $4::text[], $5::integer[], $6::text[], $7::text[], $8::bigint[], $9::timestamptz[])
    AS a (message_id, broker_message_id, delivery_attempt, outcome, error_code, duration_us, finished_at)
