-- quiet
-- No order waits for its shipment, or was shipped, once all of its money had gone back.
-- Row: docs/reference/faults.md#application: exactly one refund
SELECT
    orders.order_id,
    orders.status,
    orders.payment_id,
    payments.amount_minor,
    payments.currency,
    payments.refunded_at_ms,
    orders.shipped_at_ms
FROM orders.orders JOIN payments.payments ON payments.payment_id = orders.payment_id
WHERE payments.refunded_at_ms <= :quiet_since_ms
    -- What is shipped while the news is under way is shipped.
    AND COALESCE(orders.shipped_at_ms, :now_ms) - payments.refunded_at_ms > :now_ms - :quiet_since_ms
    AND orders.status IN ('AWAITING_SHIPMENT', 'SHIPPED', 'COMPLETED')
ORDER BY orders.order_id
