-- quiet
-- No order waits for its payment after its time to pay.
-- Row: RELIABILITY.md (d), always: no order non-terminal 120 s after quiesce; G10: 0 stuck
SELECT order_id, buyer_id, expires_at_ms, :now_ms - expires_at_ms AS late_ms
FROM orders.orders
WHERE status = 'PENDING_PAYMENT' AND expires_at_ms <= :quiet_since_ms
ORDER BY expires_at_ms, order_id
