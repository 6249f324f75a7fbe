-- always
-- The reserved units of a product are those of the orders that wait for their payment.
-- Row: docs/reference/faults.md#application, always: stock; figure G10: 0 stock leaks
WITH wanted AS (
    SELECT order_lines.product_id, SUM(order_lines.quantity) AS units
    FROM orders.order_lines JOIN orders.orders ON orders.order_id = order_lines.order_id
    WHERE orders.status = 'PENDING_PAYMENT'
    GROUP BY order_lines.product_id
)
SELECT products.product_id, products.reserved, COALESCE(wanted.units, 0) AS reserved_by_orders
FROM orders.products LEFT JOIN wanted ON wanted.product_id = products.product_id
WHERE products.reserved <> COALESCE(wanted.units, 0)
ORDER BY products.product_id
