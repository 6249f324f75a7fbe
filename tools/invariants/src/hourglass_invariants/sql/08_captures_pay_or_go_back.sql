-- quiet
-- Money that was taken has paid an order that stands, or orders has asked for it back, or all of it goes back already.
-- Row: docs/reference/faults.md#application: paid after close, exactly one refund; figure G10: 0 missed refunds
WITH asked AS (
    SELECT payment_id, SUM(amount_minor) AS asked_minor FROM payments.refunds GROUP BY payment_id
)
SELECT
    payments.payment_id,
    payments.order_id,
    orders.status AS order_status,
    orders.payment_id AS paid_by,
    payments.amount_minor,
    COALESCE(asked.asked_minor, 0) AS asked_minor,
    payments.currency,
    payments.captured_at_ms
FROM payments.payments
LEFT JOIN orders.orders ON orders.order_id = payments.order_id
LEFT JOIN asked ON asked.payment_id = payments.payment_id
WHERE payments.captured_at_ms <= :quiet_since_ms
    AND COALESCE(orders.closed_at_ms, 0) <= :quiet_since_ms
    AND (orders.payment_id IS NOT payments.payment_id OR orders.status = 'CLOSED')
    AND COALESCE(asked.asked_minor, 0) < payments.amount_minor
    AND payments.payment_id NOT IN (SELECT payment_id FROM orders.refund_requests)
ORDER BY payments.payment_id
