-- always
-- What a payment says of its refunds is what they are: how much was asked for, how much went back, and its status.
-- Row: docs/reference/faults.md#application: exactly one refund
WITH refunded AS (
    SELECT
        payment_id,
        SUM(amount_minor) AS requested_minor,
        SUM(CASE WHEN status = 'REFUNDED' THEN amount_minor ELSE 0 END) AS refunded_minor
    FROM payments.refunds
    GROUP BY payment_id
)
SELECT
    payments.payment_id,
    payments.status,
    payments.amount_minor,
    payments.refund_requested_minor,
    COALESCE(refunded.requested_minor, 0) AS requested_by_refunds,
    payments.refunded_minor,
    COALESCE(refunded.refunded_minor, 0) AS refunded_by_refunds
FROM payments.payments LEFT JOIN refunded ON refunded.payment_id = payments.payment_id
WHERE payments.refund_requested_minor <> COALESCE(refunded.requested_minor, 0)
    OR payments.refunded_minor <> COALESCE(refunded.refunded_minor, 0)
    OR payments.captured_at_ms IS NOT NULL AND payments.status <> CASE
        WHEN COALESCE(refunded.refunded_minor, 0) = 0 THEN 'CAPTURED'
        WHEN refunded.refunded_minor < payments.amount_minor THEN 'PARTIALLY_REFUNDED'
        ELSE 'REFUNDED'
    END
ORDER BY payments.payment_id
