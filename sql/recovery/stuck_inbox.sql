-- Inbox rows without an outcome, older than $1 seconds. No committed transaction leaves one (reference 12.3, 13.6): above zero is a fault.
-- $1 seconds bigint
-- -> rows bigint
SELECT count(*)
FROM consumer_inbox
WHERE status = 'PROCESSING'
  AND received_at < clock_timestamp() - make_interval(secs => $1::bigint)
