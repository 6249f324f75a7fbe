-- quiet
-- What orders asks to be given back, payments has taken on: all of the payment, less what went back before.
-- Row: figure G10: 0 missed refunds
WITH asked AS (
    SELECT payment_id, SUM(amount_minor) AS asked_minor FROM payments.refunds GROUP BY payment_id
)
SELECT
    refund_requests.payment_id,
    refund_requests.order_id,
    refund_requests.reason,
    refund_requests.amount_minor,
    COALESCE(asked.asked_minor, 0) AS asked_minor,
    refund_requests.requested_at_ms
FROM orders.refund_requests LEFT JOIN asked ON asked.payment_id = refund_requests.payment_id
WHERE refund_requests.requested_at_ms <= :quiet_since_ms
    AND COALESCE(asked.asked_minor, 0) < refund_requests.amount_minor
ORDER BY refund_requests.payment_id
