-- What PostgreSQL counts of a SKU. One row.
-- $1 activity_id bigint, $2 sku_id bigint
-- -> orders bigint, releases_due bigint
SELECT (SELECT count(*) FROM orders WHERE activity_id = $1::bigint AND sku_id = $2::bigint) AS orders,
       (SELECT count(*)
        FROM release_outbox
        WHERE activity_id = $1::bigint
          AND sku_id = $2::bigint
          AND applied_at IS NULL) AS releases_due
