-- Puts a message away for people. A redelivery updates its row.
-- ?1 consumer_group, ?2 broker_message_id, ?3 delivery_attempt, ?4 reason, ?5 detail, ?6 message_id, ?7 reservation_id, ?8 body
INSERT INTO quarantine (consumer_group, broker_message_id, delivery_attempt, reason, detail, message_id, reservation_id, body)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (consumer_group, broker_message_id) DO UPDATE
SET delivery_attempt = max(delivery_attempt, excluded.delivery_attempt),
    updated_at = strftime('%Y-%m-%dT%H:%M:%fZ', 'now')
