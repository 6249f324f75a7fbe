-- always
-- An order that was paid has a payment of its own, of exactly its total, whose money was taken.
-- Row: docs/reference/faults.md#application: match amount, currency, order
SELECT
    orders.order_id,
    orders.status,
    orders.total_minor,
    orders.currency,
    orders.payment_id,
    payments.order_id AS payment_order_id,
    payments.status AS payment_status,
    payments.amount_minor AS payment_minor,
    payments.currency AS payment_currency
FROM orders.orders LEFT JOIN payments.payments ON payments.payment_id = orders.payment_id
WHERE orders.payment_id IS NOT NULL AND (
    payments.payment_id IS NULL
    OR payments.captured_at_ms IS NULL
    OR payments.order_id <> orders.order_id
    OR payments.amount_minor <> orders.total_minor
    OR payments.currency <> orders.currency
)
ORDER BY orders.order_id
