-- Makes the cursor of a group, before everything. Safe to repeat.
-- $1 consumer_group text
INSERT INTO projection_cursor (consumer_group)
VALUES ($1::text)
ON CONFLICT DO NOTHING
