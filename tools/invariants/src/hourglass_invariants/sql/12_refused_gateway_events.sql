-- always
-- No event of the gateway was rejected: each named a payment of ours, with its order, amount and currency.
-- Row: docs/reference/faults.md#application: duplicate, late, forged, wrong-amount callback
SELECT event_id, kind, payment_id, reason, received_at_ms
FROM payments.gateway_events
WHERE status = 'REFUSED'
ORDER BY event_id
