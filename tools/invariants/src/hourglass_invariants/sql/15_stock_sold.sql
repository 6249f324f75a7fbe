-- always
-- The sold units of a product are those of the orders that were paid and have not been closed.
-- Row: docs/reference/faults.md#application, always: stock; figure G10: 0 stock leaks
WITH wanted AS (
    SELECT order_lines.product_id, SUM(order_lines.quantity) AS units
    FROM orders.order_lines JOIN orders.orders ON orders.order_id = order_lines.order_id
    WHERE orders.status IN ('AWAITING_SHIPMENT', 'SHIPPED', 'COMPLETED')
    GROUP BY order_lines.product_id
)
SELECT products.product_id, products.sold, COALESCE(wanted.units, 0) AS sold_by_orders
FROM orders.products LEFT JOIN wanted ON wanted.product_id = products.product_id
WHERE products.sold <> COALESCE(wanted.units, 0)
ORDER BY products.product_id
