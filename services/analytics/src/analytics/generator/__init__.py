"""Order histories of any size, made by Spark: what the queue would hold of a shop.

    made = generate(spark, Generation(orders=1_000_000, faults={Kind.DOUBLE_CAPTURE: 7}))
    made.bronze, made.truth

Invariants: everything follows from the seed and the number of orders, whatever the number of partitions; no row passes
through Python.
"""
