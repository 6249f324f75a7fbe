"""Where messages stand: broker, queue, and offsets, which follow each other without a gap in every queue."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from analytics.generator.chance import Chance
from analytics.generator.generation import BROKER_LETTERS, Generation


def broker_of(wanted: Generation, chance: Chance) -> Column:
    """The name of one of the brokers."""
    names = F.array(*(F.lit(f"broker-{letter}") for letter in BROKER_LETTERS[: wanted.brokers]))
    return F.get(names, chance.between("broker", 0, wanted.brokers).cast("int"))


def queue_of(wanted: Generation, chance: Chance) -> Column:
    """One of the queues of a topic."""
    return chance.between("queue", 0, wanted.queues).cast("int")


def with_offsets(rows: DataFrame) -> DataFrame:
    """`rows` and their `queueOffset`: in every queue from 0 up, as they were stored. A task sorts a queue."""
    queue = Window.partitionBy("topic", "broker", "queueId").orderBy("stored_ms", "number", "part", "copy")
    return rows.withColumn("queueOffset", F.row_number().over(queue).cast("bigint") - 1)
