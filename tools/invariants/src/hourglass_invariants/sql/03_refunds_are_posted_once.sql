-- always
-- A refund whose money went back has exactly one posting, of its amount; another refund has none.
-- Row: docs/reference/faults.md#application: exactly one refund
WITH
postings AS (
    SELECT refund_id, COUNT(DISTINCT posting_id) AS postings, -SUM(amount_minor) AS posted_minor
    FROM payments.ledger_entries
    WHERE refund_id IS NOT NULL AND account = 'gateway'
    GROUP BY refund_id
),
ids AS (
    SELECT refund_id FROM payments.refunds UNION SELECT refund_id FROM postings
)
SELECT
    ids.refund_id,
    refunds.payment_id,
    refunds.status,
    refunds.amount_minor,
    COALESCE(postings.postings, 0) AS postings,
    COALESCE(postings.posted_minor, 0) AS posted_minor
FROM ids
LEFT JOIN payments.refunds ON refunds.refund_id = ids.refund_id
LEFT JOIN postings ON postings.refund_id = ids.refund_id
WHERE CASE
    WHEN refunds.status = 'REFUNDED'
    THEN postings.postings IS NOT 1 OR postings.posted_minor <> refunds.amount_minor
    ELSE postings.refund_id IS NOT NULL
END
ORDER BY ids.refund_id
