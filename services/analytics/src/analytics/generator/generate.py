"""The generated tables: bronze, and the truth about what is wrong in it."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from analytics.generator.generation import Chance, Generation, broker_of, queue_of, with_offsets
from analytics.generator.messages import messages, timers
from analytics.generator.stories import Second, baskets, is_told, moments
from analytics.jobs.reconciliation_kinds import Kind
from analytics.jobs.times import utc_day
from analytics.schemas import BRONZE

TRUTH = StructType([StructField(name, StringType()) for name in ("kind", "order_id", "payment_id", "story")])

_ORDER_KINDS = (  # findings without a payment
    Kind.NEVER_CLOSED, Kind.CLOSED_EARLY, Kind.LINES_DO_NOT_ADD_UP, Kind.TERMS_MISSING, Kind.TOLD_DIFFERENTLY,
    Kind.PAID_WITHOUT_PAYMENT, Kind.PAID_AFTER_EXPIRY, Kind.CLOSED_LATE, Kind.CLOSED_AFTER_SHIPPING,
)  # fmt: skip
_UNPLACED = (
    "number", "part", "copy", "topic", "broker", "queueId", "tag", "order_id", "born_ms", "stored_ms", "text",
    "message_id", "own_properties",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Generated:
    """`bronze`: BRONZE. `truth`: TRUTH, a row for each planted fault."""

    bronze: DataFrame
    truth: DataFrame


def generate(spark: SparkSession, wanted: Generation, partitions: int | None = None) -> Generated:
    """Both tables, not computed yet. `partitions` is only about speed; None: as many as Spark thinks right."""
    numbers = spark.range(0, wanted.orders, 1, partitions).withColumnRenamed("id", "number")
    orders = moments(baskets(numbers, wanted), wanted)
    return Generated(_bronze(orders, wanted), _truth(orders))


def _bronze(orders: DataFrame, wanted: Generation) -> DataFrame:
    chance = Chance(wanted.seed, ("number", "part", "copy"))
    # What is stored twice stands in another queue or on another broker, as after a broker that did not answer.
    told = messages(orders, wanted).withColumns(
        {
            "broker": broker_of(wanted, chance),
            "queueId": queue_of(wanted, chance),
            "own_properties": F.create_map().cast("map<string,string>"),
        }
    )
    # The waiting records are counted once more, and get the same offsets.
    rows = with_offsets(told.select(*_UNPLACED).unionByName(timers(orders, wanted).select(*_UNPLACED)))
    if wanted.until is not None:
        rows = rows.where(F.col("stored_ms") <= int(wanted.until.timestamp() * 1000))
    read = Chance(wanted.seed, ("topic", "broker", "queueId", "queueOffset"))
    is_twice = read.happens("read twice", wanted.read_twice_share)
    times = F.when(is_twice, F.expr("array(0, 1)")).otherwise(F.expr("array(0)"))
    return rows.withColumn("time", F.explode(times)).select(*(_column(name).alias(name) for name in BRONZE.names))


def _column(name: str) -> Column:
    """The column of BRONZE, out of those of the messages."""
    made = {
        "key": F.col("order_id"),
        "keys": F.array("order_id"),
        "body": F.col("text").cast("binary"),
        "bornTimestamp": F.timestamp_millis("born_ms"),
        "storeTimestamp": F.timestamp_millis("stored_ms"),
        "msgId": F.col("message_id"),
        "properties": F.map_concat(
            F.create_map(F.lit("UNIQ_KEY"), "message_id", F.lit("TAGS"), "tag", F.lit("KEYS"), "order_id"),
            "own_properties",
        ),
        "day": utc_day(F.timestamp_millis("stored_ms")),
    }
    return made.get(name, F.col(name))


def _truth(orders: DataFrame) -> DataFrame:
    is_second = is_told(lambda one: one.second is Second.KEPT)
    has_payment = ~F.col("fault").isin([kind.value for kind in _ORDER_KINDS])
    payment_id = F.when(is_second, F.col("second_payment_id")).when(has_payment, F.col("payment_id"))
    return orders.where(F.col("fault").isNotNull()).select(
        F.col("fault").alias("kind"), "order_id", payment_id.alias("payment_id"), "story"
    )
