-- quiet
-- No refund is under way for long: what no webhook tells, the resumer asks for.
-- Row: figure G10: 0 stuck, 0 missed refunds
SELECT refund_id, payment_id, amount_minor, currency, requested_at_ms, :now_ms - requested_at_ms AS waiting_ms
FROM payments.refunds
WHERE status = 'REQUESTED' AND requested_at_ms <= :quiet_since_ms
ORDER BY requested_at_ms, refund_id
