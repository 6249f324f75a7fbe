-- quiet
-- Payments has heard of every order and of its end: an order that is closed or paid cannot be paid again.
-- Row: mechanism X9
WITH changed AS (
    SELECT order_id, MAX(at_ms) AS last_at_ms FROM orders.order_history GROUP BY order_id
)
SELECT orders.order_id, orders.status, payable_orders.status AS payable_status, changed.last_at_ms
FROM orders.orders
LEFT JOIN changed ON changed.order_id = orders.order_id
LEFT JOIN payments.payable_orders ON payable_orders.order_id = orders.order_id
WHERE COALESCE(changed.last_at_ms, orders.created_at_ms) <= :quiet_since_ms
    AND payable_orders.status IS NOT CASE
        WHEN orders.status = 'PENDING_PAYMENT' THEN 'OPEN'
        WHEN orders.status = 'CLOSED' THEN 'CLOSED'
        ELSE 'PAID'
    END
ORDER BY orders.order_id
