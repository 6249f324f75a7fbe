-- always
-- What the gateway was told to take is what the payment says: the same order, amount and currency.
-- Row: docs/reference/faults.md#application: match amount, currency, order (bug zoo 32)
SELECT
    charges.charge_id AS payment_id,
    payments.order_id,
    charges.order_id AS charge_order_id,
    payments.amount_minor,
    charges.amount_minor AS charge_minor,
    payments.currency,
    charges.currency AS charge_currency
FROM gateway.charges JOIN payments.payments ON payments.payment_id = charges.charge_id
WHERE charges.order_id <> payments.order_id
    OR charges.amount_minor <> payments.amount_minor
    OR charges.currency <> payments.currency
ORDER BY charges.charge_id
