-- Tables of the sale. seckill_inventory, orders and consumer_inbox are those of the reference (8.1); the others are ours.

CREATE TABLE seckill_activity (
    activity_id BIGINT NOT NULL,
    sku_id      BIGINT NOT NULL,
    start_at    TIMESTAMPTZ NOT NULL,
    end_at      TIMESTAMPTZ NOT NULL,
    expire_at   TIMESTAMPTZ NOT NULL,
    state       VARCHAR(24) NOT NULL DEFAULT 'OPEN',
    generation  BIGINT NOT NULL DEFAULT 1,
    created_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),

    PRIMARY KEY (activity_id, sku_id),

    CONSTRAINT ck_activity_ids
        CHECK (activity_id > 0 AND sku_id > 0),

    CONSTRAINT ck_activity_window
        CHECK (start_at < end_at AND end_at <= expire_at),

    CONSTRAINT ck_activity_state
        CHECK (state IN ('OPEN', 'CLOSED')),

    CONSTRAINT ck_activity_generation
        CHECK (generation >= 1)
);

COMMENT ON TABLE seckill_activity IS 'What is on sale and when; Redis is warmed, and rebuilt, from here.';
COMMENT ON COLUMN seckill_activity.start_at IS 'First instant of the sale.';
COMMENT ON COLUMN seckill_activity.end_at IS 'First instant after the sale.';
COMMENT ON COLUMN seckill_activity.expire_at IS 'When every Redis key of the SKU expires: end + retry, backlog, recovery and reconciliation windows.';
COMMENT ON COLUMN seckill_activity.state IS 'CLOSED: no new reservations, whatever the window says.';
COMMENT ON COLUMN seckill_activity.generation IS 'Grows by one each time Redis is rebuilt from PostgreSQL.';

-- One row is updated by every batch of a SKU. A nearly empty page leaves room for its versions, so that each update stays
-- heap-only and is pruned in place; vacuum comes by count, since a scale factor means little for a handful of rows.
CREATE TABLE seckill_inventory (
    activity_id BIGINT NOT NULL,
    sku_id      BIGINT NOT NULL,
    total_stock INTEGER NOT NULL,
    sold_stock  INTEGER NOT NULL DEFAULT 0,
    version     BIGINT NOT NULL DEFAULT 0,
    updated_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),

    PRIMARY KEY (activity_id, sku_id),

    CONSTRAINT ck_inventory_total_nonnegative
        CHECK (total_stock >= 0),

    CONSTRAINT ck_inventory_sold_range
        CHECK (sold_stock >= 0 AND sold_stock <= total_stock)
) WITH (
    fillfactor = 10,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0
);

COMMENT ON TABLE seckill_inventory IS 'Stock of a SKU in an activity: the last word against overselling.';
COMMENT ON COLUMN seckill_inventory.total_stock IS 'Units for sale.';
COMMENT ON COLUMN seckill_inventory.sold_stock IS 'Units that have an order; equals the number of order rows of the SKU.';
COMMENT ON COLUMN seckill_inventory.version IS 'Number of units ever moved, in either direction.';

CREATE TABLE orders (
    order_id       BIGINT PRIMARY KEY,
    request_id     UUID NOT NULL,
    reservation_id UUID NOT NULL,
    activity_id    BIGINT NOT NULL,
    sku_id         BIGINT NOT NULL,
    user_id        BIGINT NOT NULL,
    status         VARCHAR(24) NOT NULL,
    created_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT ck_orders_status
        CHECK (status IN (
            'CREATED',
            'PAYING',
            'PAID',
            'CANCELLED',
            'CLOSED'
        )),

    CONSTRAINT uq_orders_request_id
        UNIQUE (request_id),

    CONSTRAINT uq_orders_reservation_id
        UNIQUE (reservation_id),

    CONSTRAINT uq_orders_activity_sku_user
        UNIQUE (activity_id, sku_id, user_id)
) WITH (
    fillfactor = 90
);

COMMENT ON TABLE orders IS 'The orders. A row here is the only proof that an order exists.';
COMMENT ON COLUMN orders.order_id IS 'Allocated with the reservation, at most 2^53 - 1.';
COMMENT ON COLUMN orders.request_id IS 'The Idempotency-Key of the submit.';
COMMENT ON COLUMN orders.reservation_id IS 'The Redis reservation that holds the unit.';
COMMENT ON COLUMN orders.status IS 'CREATED here; the later ones belong to payment.';

CREATE TABLE consumer_inbox (
    consumer_group  VARCHAR(128) NOT NULL,
    message_id      UUID NOT NULL,
    request_id      UUID NOT NULL,
    reservation_id  UUID NOT NULL,
    order_id        BIGINT,
    status          VARCHAR(24) NOT NULL,
    last_error_code VARCHAR(64),
    received_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    processed_at    TIMESTAMPTZ,

    PRIMARY KEY (consumer_group, message_id),

    CONSTRAINT ck_consumer_inbox_status
        CHECK (status IN ('PROCESSING', 'COMPLETED', 'REJECTED'))
);

CREATE INDEX idx_consumer_inbox_processed_at
    ON consumer_inbox (processed_at)
    WHERE status IN ('COMPLETED', 'REJECTED');

COMMENT ON TABLE consumer_inbox IS 'One row a message: its outcome, and the answer to every redelivery.';
COMMENT ON COLUMN consumer_inbox.message_id IS 'Id in the event, kept by every resend; not the broker''s.';
COMMENT ON COLUMN consumer_inbox.order_id IS 'COMPLETED: its order. REJECTED: the order in the way, else the id that was reserved.';
COMMENT ON COLUMN consumer_inbox.status IS 'PROCESSING exists only inside the order transaction.';
COMMENT ON COLUMN consumer_inbox.last_error_code IS
    'REJECTED: PG_STOCK_EXHAUSTED, ONE_USER_ONE_ORDER, RESERVATION_RELEASED, IDENTIFIER_COLLISION or INTERNAL_ERROR.';
COMMENT ON COLUMN consumer_inbox.processed_at IS 'The projector''s cursor.';

-- A release is decided in the transaction that rejects the message, and carried to Redis afterwards.
CREATE TABLE release_outbox (
    id              BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    reservation_id  UUID NOT NULL,
    activity_id     BIGINT NOT NULL,
    sku_id          BIGINT NOT NULL,
    user_id         BIGINT NOT NULL,
    request_id      UUID NOT NULL,
    message_id      UUID NOT NULL,
    order_id        BIGINT,
    reason          VARCHAR(64) NOT NULL,
    attempts        INTEGER NOT NULL DEFAULT 0,
    last_error      VARCHAR(256),
    created_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    next_attempt_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    applied_at      TIMESTAMPTZ,

    CONSTRAINT uq_release_outbox_reservation_id
        UNIQUE (reservation_id),

    CONSTRAINT ck_release_outbox_attempts
        CHECK (attempts >= 0)
);

CREATE INDEX idx_release_outbox_due
    ON release_outbox (next_attempt_at)
    WHERE applied_at IS NULL;

CREATE INDEX idx_release_outbox_request_id
    ON release_outbox (request_id);

COMMENT ON TABLE release_outbox IS 'Reservations whose unit has to go back to Redis: once each.';
COMMENT ON COLUMN release_outbox.order_id IS 'As in consumer_inbox: what the result in Redis names.';
COMMENT ON COLUMN release_outbox.reason IS 'The error code that the result in Redis shows.';
COMMENT ON COLUMN release_outbox.attempts IS 'Tries to apply it in Redis so far.';
COMMENT ON COLUMN release_outbox.applied_at IS 'When Redis had taken it; null until then.';

CREATE TABLE consumer_attempt_log (
    id                BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_group    VARCHAR(128) NOT NULL,
    message_id        UUID,
    broker_message_id VARCHAR(128) NOT NULL,
    delivery_attempt  INTEGER NOT NULL,
    outcome           VARCHAR(32) NOT NULL,
    error_code        VARCHAR(64),
    duration_us       BIGINT NOT NULL,
    worker            VARCHAR(64) NOT NULL,
    finished_at       TIMESTAMPTZ NOT NULL
);

CREATE INDEX idx_consumer_attempt_log_message_id
    ON consumer_attempt_log (message_id)
    WHERE outcome NOT IN ('CREATED', 'DUPLICATE');

CREATE INDEX idx_consumer_attempt_log_finished_at
    ON consumer_attempt_log USING brin (finished_at);

COMMENT ON TABLE consumer_attempt_log IS 'One row a delivery, for people; written in micro-batches, may lose its tail in a crash.';
COMMENT ON COLUMN consumer_attempt_log.delivery_attempt IS 'The broker''s count, from 1; not retry_count.';
COMMENT ON COLUMN consumer_attempt_log.outcome IS 'CREATED, DUPLICATE, REJECTED, QUARANTINED, RETRY, PANIC, TIMEOUT, ...';
COMMENT ON COLUMN consumer_attempt_log.worker IS 'Host, process and shard.';

CREATE TABLE quarantine (
    id                BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_group    VARCHAR(128) NOT NULL,
    broker_message_id VARCHAR(128) NOT NULL,
    topic             VARCHAR(255) NOT NULL,
    delivery_attempt  INTEGER NOT NULL,
    reason            VARCHAR(64) NOT NULL,
    detail            VARCHAR(512),
    tag               VARCHAR(255),
    message_key       VARCHAR(255),
    message_id        UUID,
    reservation_id    UUID,
    body              BYTEA NOT NULL,
    state             VARCHAR(24) NOT NULL DEFAULT 'OPEN',
    created_at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),

    CONSTRAINT uq_quarantine_broker_message
        UNIQUE (consumer_group, broker_message_id),

    CONSTRAINT ck_quarantine_state
        CHECK (state IN ('OPEN', 'REPLAYED', 'DISCARDED'))
);

CREATE INDEX idx_quarantine_open
    ON quarantine (id)
    WHERE state = 'OPEN';

COMMENT ON TABLE quarantine IS 'Messages that must not be processed, byte for byte, until somebody decides.';
COMMENT ON COLUMN quarantine.broker_message_id IS 'The broker''s id of the message; a redelivery updates its row.';
COMMENT ON COLUMN quarantine.delivery_attempt IS 'The broker''s count at the latest delivery.';
COMMENT ON COLUMN quarantine.reason IS 'Short code: INVALID_JSON, UNSUPPORTED_SCHEMA, IDENTIFIER_COLLISION, ...';
COMMENT ON COLUMN quarantine.message_id IS 'Id in the event, as far as it could be read.';
COMMENT ON COLUMN quarantine.body IS 'The raw bytes.';
