-- The tables of sql/migrations in SQLite, for embedded mode. Ids are their canonical text and times RFC 3339 in UTC, so that
-- a person who opens the file sees what is meant. The assertions of sql/assertions hold here too.
--
-- The file can be made again from the journal: remove it, and the next start fills it.

CREATE TABLE IF NOT EXISTS seckill_activity (
    activity_id INTEGER NOT NULL CHECK (activity_id > 0),
    sku_id      INTEGER NOT NULL CHECK (sku_id > 0),
    start_at    TEXT NOT NULL,
    end_at      TEXT NOT NULL CHECK (start_at < end_at),
    expire_at   TEXT NOT NULL CHECK (end_at <= expire_at),
    state       TEXT NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'CLOSED')),
    created_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (activity_id, sku_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS seckill_inventory (
    activity_id INTEGER NOT NULL,
    sku_id      INTEGER NOT NULL,
    total_stock INTEGER NOT NULL CHECK (total_stock >= 0),
    sold_stock  INTEGER NOT NULL DEFAULT 0 CHECK (sold_stock BETWEEN 0 AND total_stock),
    version     INTEGER NOT NULL DEFAULT 0,
    updated_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    PRIMARY KEY (activity_id, sku_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS orders (
    order_id       INTEGER PRIMARY KEY,
    request_id     TEXT NOT NULL UNIQUE,
    reservation_id TEXT NOT NULL UNIQUE,
    activity_id    INTEGER NOT NULL,
    sku_id         INTEGER NOT NULL,
    user_id        INTEGER NOT NULL,
    status         TEXT NOT NULL CHECK (status IN ('CREATED', 'PAYING', 'PAID', 'CANCELLED', 'CLOSED')),
    created_at     TEXT NOT NULL,
    updated_at     TEXT NOT NULL,
    UNIQUE (activity_id, sku_id, user_id)
) STRICT;

CREATE TABLE IF NOT EXISTS consumer_inbox (
    consumer_group  TEXT NOT NULL,
    message_id      TEXT NOT NULL,
    request_id      TEXT NOT NULL,
    reservation_id  TEXT NOT NULL,
    order_id        INTEGER,
    status          TEXT NOT NULL CHECK (status IN ('PROCESSING', 'COMPLETED', 'REJECTED')),
    last_error_code TEXT,
    received_at     TEXT NOT NULL,
    processed_at    TEXT,
    PRIMARY KEY (consumer_group, message_id)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS release_outbox (
    id             INTEGER PRIMARY KEY,
    reservation_id TEXT NOT NULL UNIQUE,
    activity_id    INTEGER NOT NULL,
    sku_id         INTEGER NOT NULL,
    user_id        INTEGER NOT NULL,
    request_id     TEXT NOT NULL,
    message_id     TEXT NOT NULL,
    order_id       INTEGER,
    reason         TEXT NOT NULL,
    created_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

CREATE INDEX IF NOT EXISTS idx_release_outbox_request_id ON release_outbox (request_id);

CREATE TABLE IF NOT EXISTS quarantine (
    id                INTEGER PRIMARY KEY,
    consumer_group    TEXT NOT NULL,
    broker_message_id TEXT NOT NULL,
    delivery_attempt  INTEGER NOT NULL,
    reason            TEXT NOT NULL,
    detail            TEXT,
    message_id        TEXT,
    reservation_id    TEXT,
    body              BLOB NOT NULL,
    state             TEXT NOT NULL DEFAULT 'OPEN' CHECK (state IN ('OPEN', 'REPLAYED', 'DISCARDED')),
    created_at        TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    updated_at        TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now')),
    UNIQUE (consumer_group, broker_message_id)
) STRICT;

CREATE TABLE IF NOT EXISTS consumer_attempt_log (
    id                INTEGER PRIMARY KEY,
    consumer_group    TEXT NOT NULL,
    message_id        TEXT,
    broker_message_id TEXT NOT NULL,
    delivery_attempt  INTEGER NOT NULL,
    outcome           TEXT NOT NULL,
    error_code        TEXT,
    duration_us       INTEGER NOT NULL,
    finished_at       TEXT NOT NULL
) STRICT;
