-- Run first by `seckill migrate`, any number of times: the table that remembers which migrations are in.
-- A migration runs in one transaction: lock this table, look, run the file, insert its row, commit.
CREATE TABLE IF NOT EXISTS schema_migrations (
    version    INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    checksum   TEXT NOT NULL,
    applied_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

COMMENT ON TABLE schema_migrations IS 'Migrations that have been applied; an applied file must not change any more.';
COMMENT ON COLUMN schema_migrations.version IS 'The number in front of the file name.';
COMMENT ON COLUMN schema_migrations.name IS 'The file name.';
COMMENT ON COLUMN schema_migrations.checksum IS 'SHA-256 of the file, lower-case hexadecimal.';
