-- quiet
-- No order is paid for twice: of its charges, one at most keeps money of the buyer.
-- Row: docs/reference/faults.md#application: one ledger credit per payment id; figure G10: 0 double charges
WITH
returned AS (
    SELECT charge_id, SUM(amount_minor) AS returned_minor
    FROM gateway.refunds
    WHERE status = 'refunded'
    GROUP BY charge_id
),
kept AS (
    SELECT
        charges.order_id,
        charges.charge_id,
        charges.decided_at_ms,
        charges.amount_minor - COALESCE(returned.returned_minor, 0) AS kept_minor
    FROM gateway.charges LEFT JOIN returned ON returned.charge_id = charges.charge_id
    WHERE charges.status = 'captured'
)
SELECT order_id, COUNT(*) AS charges, GROUP_CONCAT(charge_id, ' ') AS charge_ids, SUM(kept_minor) AS kept_minor
FROM kept
WHERE kept_minor > 0
GROUP BY order_id
HAVING COUNT(*) > 1 AND MAX(decided_at_ms) <= :quiet_since_ms
ORDER BY order_id
