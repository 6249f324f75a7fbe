-- always
-- Each counter of orders is what its rows add up to: orders by status, paid orders, refund requests.
-- Row: ADR 133
WITH sides AS (
    SELECT name, value AS counted, 0 AS there FROM orders.counters
    UNION ALL SELECT 'orders/' || status, 0, COUNT(*) FROM orders.orders GROUP BY status
    UNION ALL SELECT 'paid-orders', 0, COUNT(payment_id) FROM orders.orders
    UNION ALL SELECT 'refund-requests', 0, COUNT(*) FROM orders.refund_requests
)
SELECT name AS counter, SUM(counted) AS value, SUM(there) AS of_rows
FROM sides
GROUP BY name
HAVING SUM(counted) <> SUM(there)
ORDER BY name
