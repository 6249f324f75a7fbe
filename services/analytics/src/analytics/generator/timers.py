"""The timer of every order: the record that waits in the broker, and the message that it delivers.

Invariant: the delivered message names, in `__SCHEDULE_POSITION`, the offset at which its waiting record stands in the
queue of its level on the same broker, and the waiting record in `__DUE_TIMESTAMP` when it is due.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from analytics import event_kinds as kinds
from analytics.generator.chance import Chance
from analytics.generator.generation import Generation
from analytics.generator.messages import json_text
from analytics.generator.places import broker_of, queue_of, with_offsets
from analytics.generator.stories import is_told

SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
LEVEL = 16  # of 30 minutes


def timers(orders: DataFrame, wanted: Generation) -> DataFrame:
    """Both messages of every order that was created, with the columns of messages.py, and their places."""
    chance = Chance(wanted.seed)
    waiting = orders.where(is_told(lambda one: one.is_created)).select(
        "number",
        F.lit(0).alias("part"),
        F.lit(0).alias("copy"),
        "order_id",
        F.lit(SCHEDULE_TOPIC).alias("topic"),
        F.lit(kinds.EXPIRE).alias("tag"),
        broker_of(wanted, chance).alias("broker"),
        F.lit(LEVEL - 1).alias("queueId"),
        queue_of(wanted, chance).alias("real_queue_id"),
        (F.col("waiting_ms") - 1).alias("born_ms"),
        F.col("waiting_ms").alias("stored_ms"),
        "due_ms",
        "delivered_ms",
        _text().alias("text"),
        F.upper(chance.hex_id("timer")).alias("message_id"),
    )
    both = with_offsets(waiting).withColumn("both", F.explode(F.array(_waiting(), _delivered())))
    return both.drop("topic", "queueId", "stored_ms").select("*", "both.*")


def _text() -> Column:
    members = {"order_id": F.col("order_id"), "expires_at_ms": F.col("expires_ms")}
    return json_text({"version": F.lit(kinds.VERSION_KNOWN)} | members)


def _waiting() -> Column:
    return _place(
        F.lit(SCHEDULE_TOPIC),
        F.col("queueId"),
        F.col("stored_ms"),
        {
            "DELAY": F.lit(str(LEVEL)),
            "REAL_TOPIC": F.lit(kinds.ORDER_TIMEOUTS_TOPIC),
            "REAL_QID": F.col("real_queue_id").cast("string"),
            "__DUE_TIMESTAMP": F.col("due_ms").cast("string"),
        },
    )


def _delivered() -> Column:
    return _place(
        F.lit(kinds.ORDER_TIMEOUTS_TOPIC),
        F.col("real_queue_id"),
        F.col("delivered_ms"),
        {"WAIT": F.lit("false"), "__SCHEDULE_POSITION": F.format_string(f"{LEVEL}:%s", "queueOffset")},
    )


def _place(topic: Column, queue_id: Column, stored_ms: Column, properties: dict[str, Column]) -> Column:
    pairs = [part for name, value in properties.items() for part in (F.lit(name), value)]
    return F.struct(
        topic.alias("topic"),
        queue_id.alias("queueId"),
        stored_ms.alias("stored_ms"),
        F.create_map(*pairs).alias("own_properties"),
    )
