-- always
-- No refund was rejected by the gateway: a person mends the cause and has it tried again.
-- Row: figure G10: 0 missed refunds
SELECT refund_id, payment_id, amount_minor, currency, requested_at_ms, :now_ms - requested_at_ms AS waiting_ms
FROM payments.refunds
WHERE status = 'FAILED'
ORDER BY requested_at_ms, refund_id
