-- How far the outcomes in the inbox have been shown to their owners, one row a consumer group.
CREATE TABLE projection_cursor (
    consumer_group VARCHAR(128) PRIMARY KEY,
    processed_at   TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    message_id     UUID NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    leased_until   TIMESTAMPTZ NOT NULL DEFAULT '-infinity'
);

COMMENT ON TABLE projection_cursor IS 'Every outcome up to here is in Redis, whatever became of the process that settled it.';
COMMENT ON COLUMN projection_cursor.processed_at IS 'Of the last inbox row shown; with message_id the place in the order of rows.';
COMMENT ON COLUMN projection_cursor.leased_until IS 'Until then one projector has the next rows for itself.';
