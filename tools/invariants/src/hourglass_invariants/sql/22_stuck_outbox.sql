-- quiet
-- No event waits in the outbox for long: the relay sends it when the queue is back.
-- Row: docs/reference/faults.md#application: MQ down after money moved
SELECT row_id, topic, tag, message_key, created_at_ms, :now_ms - created_at_ms AS waiting_ms
FROM payments.outbox
WHERE created_at_ms <= :quiet_since_ms
ORDER BY row_id
