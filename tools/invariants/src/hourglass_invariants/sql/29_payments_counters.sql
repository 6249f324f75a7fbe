-- always
-- Each counter of payments is what its rows add up to: payments, refunds and events by status, and the ledger's money.
-- Row: ADR 133
WITH sides AS (
    SELECT name, value AS counted, 0 AS there FROM payments.counters
    UNION ALL SELECT 'payments/' || status, 0, COUNT(*) FROM payments.payments GROUP BY status
    UNION ALL SELECT 'refunds/' || status, 0, COUNT(*) FROM payments.refunds GROUP BY status
    UNION ALL SELECT 'gateway-events/' || status, 0, COUNT(*) FROM payments.gateway_events GROUP BY status
    UNION ALL SELECT 'ledger/' || account, 0, SUM(amount_minor) FROM payments.ledger_entries GROUP BY account
    UNION ALL SELECT 'captured', 0, amount_minor
    FROM payments.ledger_entries WHERE account = 'gateway' AND amount_minor > 0
    UNION ALL SELECT 'refunded', 0, -amount_minor
    FROM payments.ledger_entries WHERE account = 'gateway' AND amount_minor < 0
)
SELECT name AS counter, SUM(counted) AS value, SUM(there) AS of_rows
FROM sides
GROUP BY name
HAVING SUM(counted) <> SUM(there)
ORDER BY name
