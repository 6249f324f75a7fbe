-- always
-- The history of an order is an unbroken chain from nothing to its status, one row for each of its versions.
-- Row: mechanism X1
WITH
chain AS (
    SELECT
        order_id,
        old_status,
        new_status,
        LAG(new_status) OVER (PARTITION BY order_id ORDER BY change_id) AS status_before,
        ROW_NUMBER() OVER (PARTITION BY order_id ORDER BY change_id DESC) AS changes_left
    FROM orders.order_history
),
summary AS (
    SELECT
        order_id,
        COUNT(*) AS changes,
        SUM(old_status IS NOT status_before) AS breaks,
        MAX(CASE WHEN changes_left = 1 THEN new_status END) AS last_status
    FROM chain
    GROUP BY order_id
)
SELECT
    orders.order_id,
    orders.status,
    summary.last_status,
    orders.version,
    COALESCE(summary.changes, 0) AS changes,
    COALESCE(summary.breaks, 0) AS breaks
FROM orders.orders LEFT JOIN summary ON summary.order_id = orders.order_id
WHERE orders.status IS NOT summary.last_status OR orders.version IS NOT summary.changes OR summary.breaks > 0
ORDER BY orders.order_id
