-- Whether this server takes orders: one row from a primary, none from a standby.
-- -> ok integer
SELECT 1 AS ok
WHERE NOT pg_is_in_recovery()
