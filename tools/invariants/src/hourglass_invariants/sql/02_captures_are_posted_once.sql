-- always
-- A payment whose money was taken has exactly one capture posting, of its amount; another payment has none.
-- Row: docs/reference/faults.md#application: one ledger credit per payment id
WITH
postings AS (
    SELECT payment_id, COUNT(DISTINCT posting_id) AS postings, SUM(amount_minor) AS posted_minor
    FROM payments.ledger_entries
    WHERE refund_id IS NULL AND account = 'gateway'
    GROUP BY payment_id
),
ids AS (
    SELECT payment_id FROM payments.payments UNION SELECT payment_id FROM postings
)
SELECT
    ids.payment_id,
    payments.status,
    payments.amount_minor,
    COALESCE(postings.postings, 0) AS postings,
    COALESCE(postings.posted_minor, 0) AS posted_minor
FROM ids
LEFT JOIN payments.payments ON payments.payment_id = ids.payment_id
LEFT JOIN postings ON postings.payment_id = ids.payment_id
WHERE CASE
    WHEN payments.status IN ('CAPTURED', 'PARTIALLY_REFUNDED', 'REFUNDED')
    THEN postings.postings IS NOT 1 OR postings.posted_minor <> payments.amount_minor
    ELSE postings.payment_id IS NOT NULL
END
ORDER BY ids.payment_id
