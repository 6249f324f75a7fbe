"""The tables that more than one job knows: bronze, the events read from it, and what could not be read.

Invariants: a column may always be null as far as Spark knows, what must be there is checked where it is read; times are
UTC with milliseconds, money is in the currency's minor unit. Every column is explained in services/analytics/README.md.
"""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DateType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_mq import SCHEMA

# As the data source `mq` names them, and the day of storeTimestamp.
BRONZE = StructType([*SCHEMA.fields, StructField("day", DateType())])

LINES = ArrayType(
    StructType(
        [
            StructField("product_id", StringType()),
            StructField("quantity", LongType()),
            StructField("unit_price_minor", LongType()),
        ]
    )
)

_WHERE_IT_STOOD = [
    StructField("topic", StringType()),
    StructField("broker", StringType()),
    StructField("queue_id", IntegerType()),
    StructField("queue_offset", LongType()),
    StructField("msg_id", StringType()),
    StructField("stored_at", TimestampType()),
    StructField("kind", StringType()),
]

EVENTS = StructType(
    [
        *_WHERE_IT_STOOD,
        StructField("version", IntegerType()),
        StructField("order_id", StringType()),
        StructField("buyer_id", StringType()),
        StructField("currency", StringType()),
        StructField("total_minor", LongType()),
        StructField("amount_minor", LongType()),
        StructField("refunded_minor", LongType()),
        StructField("payment_id", StringType()),
        StructField("refund_id", StringType()),
        StructField("reason", StringType()),
        StructField("created_at", TimestampType()),
        StructField("expires_at", TimestampType()),
        StructField("paid_at", TimestampType()),
        StructField("shipped_at", TimestampType()),
        StructField("completed_at", TimestampType()),
        StructField("closed_at", TimestampType()),
        StructField("refunded_at", TimestampType()),
        StructField("lines", LINES),
    ]
)

REJECTS = StructType(
    [
        *_WHERE_IT_STOOD,
        StructField("body", BinaryType()),
        StructField("problem", StringType()),
        StructField("day", DateType()),
    ]
)
