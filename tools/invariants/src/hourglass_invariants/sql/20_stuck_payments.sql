-- quiet
-- No payment is undecided for long: what no webhook tells, the resumer asks for.
-- Row: figure G10: 0 stuck
SELECT payment_id, order_id, amount_minor, currency, created_at_ms, :now_ms - created_at_ms AS waiting_ms
FROM payments.payments
WHERE status = 'CREATED' AND created_at_ms <= :quiet_since_ms
ORDER BY created_at_ms, payment_id
