-- always
-- The total of an order is the sum of its lines, and there is at least one.
-- Row: mechanism X2, docs/reference/faults.md#application
SELECT
    orders.order_id,
    orders.total_minor,
    COALESCE(SUM(order_lines.quantity * order_lines.unit_price_minor), 0) AS lines_minor,
    COUNT(order_lines.order_id) AS lines
FROM orders.orders LEFT JOIN orders.order_lines ON order_lines.order_id = orders.order_id
GROUP BY orders.order_id
HAVING lines = 0 OR lines_minor <> orders.total_minor
ORDER BY orders.order_id
