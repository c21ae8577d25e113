-- Finds inbox rows without an outcome without reading the whole table. It is empty but for transactions under way one message at a
-- time: batches write the outcome at once.
CREATE INDEX idx_consumer_inbox_processing
    ON consumer_inbox (received_at)
    WHERE status = 'PROCESSING';
