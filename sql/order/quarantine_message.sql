-- Puts a message away for people and, if it names a reservation, gives that unit back: one statement, both or neither.
-- A redelivery updates the attempt of its row. Release as in insert_release_outbox.sql; it needs $8 to $13 all set, else
-- pass $9 as null and nothing is released.
-- $1 consumer_group text, $2 broker_message_id text, $3 topic text, $4 delivery_attempt integer, $5 reason text,
-- $6 detail text?, $7 body bytea, $8 message_id uuid?, $9 reservation_id uuid?, $10 request_id uuid?, $11 activity_id bigint?,
-- $12 sku_id bigint?, $13 user_id bigint?, $14 order_id bigint?, $15 tag text?, $16 message_key text?
-- -> quarantine_id bigint, released boolean (true: this statement decided the release)
WITH kept AS (
    INSERT INTO quarantine (
        consumer_group, broker_message_id, topic, delivery_attempt, reason, detail, tag, message_key, message_id,
        reservation_id, body
    )
    VALUES (
        $1::text, $2::text, $3::text, $4::integer, $5::text, left($6::text, 512), left($15::text, 255),
        left($16::text, 255), $8::uuid, $9::uuid, $7::bytea
    )
    ON CONFLICT (consumer_group, broker_message_id) DO UPDATE
    SET delivery_attempt = GREATEST(quarantine.delivery_attempt, EXCLUDED.delivery_attempt),
        updated_at = clock_timestamp()
    RETURNING id
), released AS (
    INSERT INTO release_outbox (reservation_id, request_id, message_id, activity_id, sku_id, user_id, order_id, reason)
    SELECT $9::uuid, $10::uuid, $8::uuid, $11::bigint, $12::bigint, $13::bigint, $14::bigint, $5::text
    WHERE $9::uuid IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM orders WHERE reservation_id = $9::uuid)
    ON CONFLICT (reservation_id) DO NOTHING
    RETURNING 1
)
SELECT kept.id AS quarantine_id, EXISTS (SELECT 1 FROM released) AS released
FROM kept
