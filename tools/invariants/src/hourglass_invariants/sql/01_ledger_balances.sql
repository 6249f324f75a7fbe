-- always
-- The entries of every posting sum to zero, currency by currency: whatever one account gives another account gets.
-- Row: docs/reference/faults.md#application, always: debits = credits
SELECT posting_id, currency, SUM(amount_minor) AS sum_minor, COUNT(*) AS entries
FROM payments.ledger_entries
GROUP BY posting_id, currency
HAVING SUM(amount_minor) <> 0
ORDER BY posting_id, currency
