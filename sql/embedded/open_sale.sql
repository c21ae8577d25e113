-- A sale as the journal has it. Safe to repeat.
-- ?1 activity_id, ?2 sku_id, ?3 start_at, ?4 end_at, ?5 expire_at, ?6 state
INSERT INTO seckill_activity (activity_id, sku_id, start_at, end_at, expire_at, state)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (activity_id, sku_id) DO UPDATE SET state = excluded.state
