-- quiet
-- For every charge the gateway's own book and the ledger agree on what was taken and not given back.
-- Row: docs/reference/faults.md#application; figure G10: 0 double charges, 0 missed refunds
WITH
returned AS (
    SELECT charge_id, SUM(amount_minor) AS returned_minor, MAX(refunded_at_ms) AS last_at_ms
    FROM gateway.refunds
    WHERE status = 'refunded'
    GROUP BY charge_id
),
book AS (
    SELECT
        charges.charge_id AS payment_id,
        charges.currency,
        charges.amount_minor - COALESCE(returned.returned_minor, 0) AS kept_minor,
        MAX(charges.decided_at_ms, COALESCE(returned.last_at_ms, 0)) AS last_at_ms
    FROM gateway.charges LEFT JOIN returned ON returned.charge_id = charges.charge_id
    WHERE charges.status = 'captured'
),
ledger AS (
    SELECT payment_id, currency, SUM(amount_minor) AS kept_minor, MAX(at_ms) AS last_at_ms
    FROM payments.ledger_entries
    WHERE account = 'gateway'
    GROUP BY payment_id, currency
),
ids AS (
    SELECT payment_id, currency FROM book UNION SELECT payment_id, currency FROM ledger
)
SELECT
    ids.payment_id,
    ids.currency,
    COALESCE(book.kept_minor, 0) AS gateway_kept_minor,
    COALESCE(ledger.kept_minor, 0) AS ledger_kept_minor
FROM ids
LEFT JOIN book ON book.payment_id = ids.payment_id AND book.currency = ids.currency
LEFT JOIN ledger ON ledger.payment_id = ids.payment_id AND ledger.currency = ids.currency
WHERE COALESCE(book.kept_minor, 0) <> COALESCE(ledger.kept_minor, 0)
    AND MAX(COALESCE(book.last_at_ms, 0), COALESCE(ledger.last_at_ms, 0)) <= :quiet_since_ms
ORDER BY ids.payment_id, ids.currency
