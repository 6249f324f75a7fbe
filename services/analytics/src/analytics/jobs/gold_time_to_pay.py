"""Orders -> how long buyers took to pay, by the day on which the order was created (MISSION Y6).

Percentiles are exact. A payment that the gateway took before the order's clock says it was created (clocks disagree by
some milliseconds) counts as 0.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DateType, StructField, StructType

from analytics.jobs.quantiles import QUANTILE_FIELDS, quantiles
from analytics.jobs.times import elapsed_ms

TIME_TO_PAY = StructType([StructField("day", DateType()), *QUANTILE_FIELDS])


def time_to_pay(orders: DataFrame) -> DataFrame:
    """TIME_TO_PAY of those ORDERS of which both times are known."""
    took_ms = F.greatest(F.lit(0).cast("long"), elapsed_ms("created_at", "paid_at"))
    known = orders.where(F.col("created_at").isNotNull() & F.col("paid_at").isNotNull())
    return quantiles(known.select("day", took_ms.alias("took_ms")), ["day"], "took_ms").select(*TIME_TO_PAY.names)
