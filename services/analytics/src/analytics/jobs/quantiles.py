"""Percentiles, exactly: the smallest value that a share of the values does not exceed.

They are found in a table of how often each value occurs, in order: Spark sorts it and may spill it, so that nothing
has to fit into memory, and the answer is a value that occurred. It is also the broker's definition
(mq_broker.core.lateness), which rounds it up to the end of a class.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField

SHARES = (("p50_ms", 0.50), ("p90_ms", 0.90), ("p95_ms", 0.95), ("p99_ms", 0.99))
QUANTILE_FIELDS = (
    StructField("count", LongType()),
    *(StructField(name, LongType()) for name, _ in SHARES),
    StructField("max_ms", LongType()),
    StructField("sum_ms", LongType()),
)


def quantiles(rows: DataFrame, keys: Sequence[str], value_ms: str) -> DataFrame:
    """One row per value of `keys`, with QUANTILE_FIELDS; nulls in `value_ms` are not counted."""
    occurring = rows.where(F.col(value_ms).isNotNull())
    frequencies = occurring.groupBy(*keys, value_ms).agg(F.count("*").alias("frequency"))
    own = Window.partitionBy(*keys)
    upwards = own.orderBy(value_ms).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    counted = frequencies.select(
        *keys,
        value_ms,
        "frequency",
        F.sum("frequency").over(upwards).alias("seen"),
        F.sum("frequency").over(own).alias("total"),
    )
    return counted.groupBy(*keys).agg(
        F.sum("frequency").alias("count"),
        *(
            F.min(F.when(F.col("seen") >= F.col("total") * share, F.col(value_ms))).alias(name)
            for name, share in SHARES
        ),
        F.max(value_ms).alias("max_ms"),
        F.sum(F.col(value_ms) * F.col("frequency")).alias("sum_ms"),
    )
