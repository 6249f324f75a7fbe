-- always
-- Available, reserved and sold units of a product are together what was ever put on sale (where the caller says it).
-- Row: docs/reference/faults.md#application, always: stock + reserved + sold constant; figure G10: 0 stock leaks
SELECT
    stocked.product_id,
    stocked.units AS stocked,
    products.available,
    products.reserved,
    products.sold
FROM main.stocked LEFT JOIN orders.products ON products.product_id = stocked.product_id
WHERE COALESCE(products.available + products.reserved + products.sold, -1) <> stocked.units
ORDER BY stocked.product_id
