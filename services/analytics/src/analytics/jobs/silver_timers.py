"""Bronze -> one row per delivered timeout: when it was due, and how late the broker delivered it (MISSION Y6).

Invariants: a timeout that waited names the waiting record that it was, and that one says when it was due, so the
broker's own lateness is read and not guessed. A timeout that did not wait (its order was due when it was sent), and one
whose waiting record is not in bronze, have no due time and no lateness.

Bronze must hold the broker's queues of waiting records, WAITING_TOPICS, beside the topic of the timeouts.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

from analytics.event_kinds import ORDER_TIMEOUTS_TOPIC
from analytics.jobs.bronze import PLACE
from analytics.jobs.times import elapsed_ms

TIMERS = StructType(
    [
        StructField("order_id", StringType()),
        StructField("msg_id", StringType()),
        StructField("delivered_at", TimestampType()),
        StructField("due_at", TimestampType()),
        StructField("lateness_ms", LongType()),
        StructField("level", IntegerType()),
    ]
)

# The broker's names (mqproto), kept here as the shop's topics are: a test holds that both agree.
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # queue n holds what waits by level n + 1
TIMER_TOPIC = "rmq_sys_wheel_timer"  # what waits by a due time of its own; "level" -1
CARRIED_TOPIC = "SCHEDULE_TOPIC_CARRIED"  # the same, as earlier versions kept it; "level" 0
WAITING_TOPICS = (SCHEDULE_TOPIC, TIMER_TOPIC, CARRIED_TOPIC)
SCHEDULE_POSITION = "__SCHEDULE_POSITION"  # of a delivered record: level:queue offset
DUE_TIMESTAMP = "__DUE_TIMESTAMP"  # of a waiting record, in ms

_POSITION = r"^-?\d{1,4}:\d{1,18}$"


def timers(bronze: DataFrame) -> DataFrame:
    """TIMERS of the timeouts in BRONZE, each place of the queue once."""
    delivered = _delivered(bronze)
    waiting = _waiting(bronze)
    joined = delivered.join(waiting, ["broker", "topic", "queueId", "queueOffset"], "left")
    return joined.withColumn("lateness_ms", elapsed_ms("due_at", "delivered_at")).select(*TIMERS.names)


def _delivered(bronze: DataFrame) -> DataFrame:
    """The delivered timeouts, with the place of the waiting record that each was."""
    position = F.col("properties")[SCHEDULE_POSITION]
    told = F.when(position.rlike(_POSITION), F.split(position, ":"))
    level = F.get(told, 0).cast("int")
    return (
        bronze.where(F.col("topic") == ORDER_TIMEOUTS_TOPIC)
        .dropDuplicates(list(PLACE))
        .select(
            F.get("keys", 0).alias("order_id"),
            F.col("msgId").alias("msg_id"),
            F.col("storeTimestamp").alias("delivered_at"),
            level.alias("level"),
            "broker",
            _waiting_topic(level).alias("topic"),
            F.when(level > 0, level - 1).otherwise(F.when(level.isNotNull(), 0)).alias("queueId"),
            F.get(told, 1).cast("long").alias("queueOffset"),
        )
    )


def _waiting(bronze: DataFrame) -> DataFrame:
    """The waiting records' places and due times."""
    due_ms = F.col("properties")[DUE_TIMESTAMP].try_cast("long")
    return (
        bronze.where(F.col("topic").isin(*WAITING_TOPICS))
        .select(*PLACE, F.timestamp_millis(due_ms).alias("due_at"))
        .dropDuplicates(list(PLACE))
    )


def _waiting_topic(level: Column) -> Column:
    return (
        F.when(level > 0, F.lit(SCHEDULE_TOPIC))
        .when(level == 0, F.lit(CARRIED_TOPIC))
        .when(level.isNotNull(), F.lit(TIMER_TOPIC))
    )
