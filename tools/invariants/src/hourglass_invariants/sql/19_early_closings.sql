-- always
-- No order was closed by its timer before its time to pay was over.
-- Row: mechanisms X3, D4
SELECT orders.order_id, orders.expires_at_ms, order_history.at_ms, orders.expires_at_ms - order_history.at_ms AS early_ms
FROM orders.orders JOIN orders.order_history ON order_history.order_id = orders.order_id
WHERE order_history.reason = 'expired' AND order_history.at_ms < orders.expires_at_ms
ORDER BY orders.order_id
