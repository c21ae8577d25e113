-- One delivery, for people.
-- ?1 consumer_group, ?2 message_id, ?3 broker_message_id, ?4 delivery_attempt, ?5 outcome, ?6 error_code or null, ?7 duration_us,
-- ?8 finished_at
INSERT INTO consumer_attempt_log (
    consumer_group, message_id, broker_message_id, delivery_attempt, outcome, error_code, duration_us, finished_at
)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
