-- always
-- The history of a payment is an unbroken chain from nothing to its status.
-- Row: docs/reference/faults.md#application, always
WITH
chain AS (
    SELECT
        payment_id,
        old_status,
        new_status,
        LAG(new_status) OVER (PARTITION BY payment_id ORDER BY change_id) AS status_before,
        ROW_NUMBER() OVER (PARTITION BY payment_id ORDER BY change_id DESC) AS changes_left
    FROM payments.payment_history
),
summary AS (
    SELECT
        payment_id,
        SUM(old_status IS NOT status_before) AS breaks,
        MAX(CASE WHEN changes_left = 1 THEN new_status END) AS last_status
    FROM chain
    GROUP BY payment_id
)
SELECT
    payments.payment_id,
    payments.status,
    summary.last_status,
    COALESCE(summary.breaks, 0) AS breaks
FROM payments.payments LEFT JOIN summary ON summary.payment_id = payments.payment_id
WHERE payments.status IS NOT summary.last_status OR summary.breaks > 0
ORDER BY payments.payment_id
