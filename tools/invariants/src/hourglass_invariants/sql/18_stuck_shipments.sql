-- quiet
-- No shipped order waits for its buyer after its time to complete by itself.
-- Row: docs/reference/faults.md#application, always: no order non-terminal 120 s after quiesce; figure G10: 0 stuck
SELECT order_id, buyer_id, shipped_at_ms, :now_ms - shipped_at_ms - :completion_after_ms AS late_ms
FROM orders.orders
WHERE status = 'SHIPPED' AND shipped_at_ms + :completion_after_ms <= :quiet_since_ms
ORDER BY shipped_at_ms, order_id
