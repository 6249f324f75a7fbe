-- quiet
-- No order waits for its payment after its time to pay, but while a payment holds it, 10 minutes at the most.
-- Row: docs/reference/faults.md#application, always: no order non-terminal 120 s after quiesce; figure G10: 0 stuck
SELECT order_id, buyer_id, expires_at_ms, :now_ms - expires_at_ms AS late_ms
FROM orders.orders
WHERE status = 'PENDING_PAYMENT'
    AND MIN(MAX(expires_at_ms, COALESCE(hold_until_ms, 0)), expires_at_ms + 600000) <= :quiet_since_ms
ORDER BY expires_at_ms, order_id
