-- always
-- The refunds of a payment, done or only asked for, never exceed what was taken, and are in its currency.
-- Row: docs/reference/faults.md#application: exactly one refund
SELECT
    refunds.payment_id,
    payments.status,
    payments.amount_minor,
    payments.currency,
    SUM(refunds.amount_minor) AS refunds_minor,
    COUNT(*) AS refunds
FROM payments.refunds LEFT JOIN payments.payments ON payments.payment_id = refunds.payment_id
GROUP BY refunds.payment_id
HAVING
    COALESCE(payments.status NOT IN ('CAPTURED', 'PARTIALLY_REFUNDED', 'REFUNDED'), TRUE)
    OR SUM(refunds.amount_minor) > payments.amount_minor
    OR SUM(refunds.currency <> payments.currency) > 0
ORDER BY refunds.payment_id
