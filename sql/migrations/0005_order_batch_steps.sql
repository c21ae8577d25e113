-- seckill_order_batch (migration 0002) also says how long its steps took: a column more, in the first row only.
--
--   steps_us   microseconds for {inbox, orders, stock}; null from the second row on. What a call took beyond their sum is the commit and
--              the way there and back.
--
-- Three looks at the clock a batch. Everything else is as in migration 0002, which also says why it is as it is. Workers of the version
-- before name the columns they read and go on as they are; PostgreSQL plans their statement anew.
DROP FUNCTION seckill_order_batch(TEXT, BIGINT, BIGINT, UUID[], UUID[], UUID[], BIGINT[], BIGINT[]);

CREATE FUNCTION seckill_order_batch(
    p_consumer_group  TEXT,
    p_activity_id     BIGINT,
    p_sku_id          BIGINT,
    p_message_ids     UUID[],
    p_request_ids     UUID[],
    p_reservation_ids UUID[],
    p_order_ids       BIGINT[],
    p_user_ids        BIGINT[]
) RETURNS TABLE (
    ordinal      INTEGER,
    outcome      TEXT,
    inbox_status TEXT,
    order_id     BIGINT,
    error_code   TEXT,
    steps_us     BIGINT[]
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_size    INTEGER := cardinality(p_message_ids);
    v_new     INTEGER;
    v_settled INTEGER := 0;
    v_rows    INTEGER;
    v_new_ids UUID[];
    v_begun   TIMESTAMPTZ := clock_timestamp();
    v_inbox   TIMESTAMPTZ;
    v_orders  TIMESTAMPTZ;
    v_steps   BIGINT[];
BEGIN
    IF v_size = 0
       OR v_size IS DISTINCT FROM cardinality(p_request_ids)
       OR v_size IS DISTINCT FROM cardinality(p_reservation_ids)
       OR v_size IS DISTINCT FROM cardinality(p_order_ids)
       OR v_size IS DISTINCT FROM cardinality(p_user_ids) THEN
        RAISE EXCEPTION 'seckill_order_batch takes five arrays of one length' USING ERRCODE = '22023';
    END IF;

    WITH inserted AS (
        INSERT INTO consumer_inbox (
            consumer_group, message_id, request_id, reservation_id, order_id, status, received_at, processed_at
        )
        SELECT p_consumer_group, m.message_id, m.request_id, m.reservation_id, m.order_id, 'COMPLETED',
               clock_timestamp(), clock_timestamp()
        FROM unnest(p_message_ids, p_request_ids, p_reservation_ids, p_order_ids)
            AS m (message_id, request_id, reservation_id, order_id)
        ORDER BY m.message_id
        ON CONFLICT (consumer_group, message_id) DO NOTHING
        RETURNING message_id
    )
    SELECT count(*), array_agg(message_id) INTO v_new, v_new_ids FROM inserted;
    v_inbox := clock_timestamp();
    v_orders := v_inbox;

    IF v_new < v_size THEN
        -- The rest must be other messages, already settled, with the very same contents.
        SELECT count(*) INTO v_settled
        FROM unnest(p_message_ids, p_request_ids, p_reservation_ids)
            AS m (message_id, request_id, reservation_id)
        JOIN consumer_inbox i
          ON i.consumer_group = p_consumer_group
         AND i.message_id = m.message_id
         AND i.request_id = m.request_id
         AND i.reservation_id = m.reservation_id
        WHERE i.status IN ('COMPLETED', 'REJECTED')
          AND m.message_id <> ALL (coalesce(v_new_ids, '{}'));

        IF v_new + v_settled <> v_size THEN
            RAISE EXCEPTION 'order batch refused'
                USING ERRCODE = 'SK001', DETAIL = 'a message is twice in the batch, not settled, or reuses an id';
        END IF;
    END IF;

    IF v_new > 0 THEN
        IF EXISTS (
            SELECT 1
            FROM release_outbox r
            JOIN unnest(p_message_ids, p_reservation_ids) AS m (message_id, reservation_id)
              ON r.reservation_id = m.reservation_id
            WHERE v_new = v_size OR m.message_id = ANY (v_new_ids)
        ) THEN
            RAISE EXCEPTION 'order batch refused' USING ERRCODE = 'SK001', DETAIL = 'the release of a reservation is decided';
        END IF;

        INSERT INTO orders (
            order_id, request_id, reservation_id, activity_id, sku_id, user_id, status, created_at, updated_at
        )
        SELECT m.order_id, m.request_id, m.reservation_id, p_activity_id, p_sku_id, m.user_id, 'CREATED',
               clock_timestamp(), clock_timestamp()
        FROM unnest(p_message_ids, p_request_ids, p_reservation_ids, p_order_ids, p_user_ids)
            AS m (message_id, request_id, reservation_id, order_id, user_id)
        WHERE v_new = v_size OR m.message_id = ANY (v_new_ids)
        ORDER BY m.user_id;
        v_orders := clock_timestamp();

        UPDATE seckill_inventory
        SET sold_stock = sold_stock + v_new,
            version = version + v_new,
            updated_at = clock_timestamp()
        WHERE activity_id = p_activity_id
          AND sku_id = p_sku_id
          AND sold_stock + v_new <= total_stock;
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        IF v_rows <> 1 THEN
            RAISE EXCEPTION 'order batch refused'
                USING ERRCODE = 'SK001', DETAIL = 'not enough stock, or no inventory row';
        END IF;
    END IF;

    v_steps := ARRAY[
        date_part('microseconds', v_inbox - v_begun)::BIGINT,
        date_part('microseconds', v_orders - v_inbox)::BIGINT,
        date_part('microseconds', clock_timestamp() - v_orders)::BIGINT
    ];
    IF v_new = v_size THEN
        RETURN QUERY
        SELECT g.i, 'CREATED'::TEXT, 'COMPLETED'::TEXT, p_order_ids[g.i], NULL::TEXT,
               CASE WHEN g.i = 1 THEN v_steps END
        FROM generate_series(1, v_size) AS g (i);
    ELSE
        RETURN QUERY
        SELECT m.ordinal::INTEGER,
               CASE WHEN m.message_id = ANY (v_new_ids) THEN 'CREATED' ELSE 'DUPLICATE' END,
               i.status::TEXT, i.order_id, i.last_error_code::TEXT,
               CASE WHEN m.ordinal = 1 THEN v_steps END
        FROM unnest(p_message_ids) WITH ORDINALITY AS m (message_id, ordinal)
        JOIN consumer_inbox i
          ON i.consumer_group = p_consumer_group
         AND i.message_id = m.message_id
        ORDER BY m.ordinal;
    END IF;
END
$$;

COMMENT ON FUNCTION seckill_order_batch IS
    'Orders for N messages of one SKU, all or nothing; SK001 or 23505: give each message its own transaction.';
