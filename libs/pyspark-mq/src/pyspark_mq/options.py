"""The options of reading, parsed once (MISSION Y1, Y2, Y4); docs/spark.md explains each with an example.

Names and meaning are those of Spark's Kafka source where they mean the same. Names are case-insensitive. An unknown
one is refused by name, and so is one that the kind of read cannot have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_mq.errors import OptionError
from pyspark_mq.option_values import OptionValues
from pyspark_mq.position_options import ENDING, STARTING, ending_position, starting_position
from pyspark_mq.positions import Position
from pyspark_mq.topic_choice import TopicChoice
from pyspark_mq.topic_options import CHOICES, topic_choice

PULL_MESSAGES_MAX = 1_024  # more a broker does not give at once

WHERE = ("namesrvAddr", *CHOICES, "includeSystemTopics")
STREAM_ONLY = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "group")
BOTH = (
    "tags", "sql", "failOnDataLoss", "minPartitions", "maxRecordsPerPartition", "readFromSlave", "includeProperties",
    "pullBatchSize", "pullTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "filterPushdown",
)  # fmt: skip
READ_OPTIONS = (*WHERE, *STARTING, *ENDING, *BOTH, *STREAM_ONLY)


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Durations in seconds; 0 for a limit means that there is none."""

    url: str
    choice: TopicChoice
    starting: Position
    ending: Position
    tags: str
    sql: str
    fail_on_data_loss: bool
    min_partitions: int
    max_records_per_partition: int
    max_offsets_per_trigger: int
    min_offsets_per_trigger: int
    max_trigger_delay_s: float
    group: str
    read_from_slave: bool
    include_properties: bool
    pull_batch_size: int
    pull_timeout_s: float
    retries: int
    retry_interval_s: float
    filter_pushdown: bool


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Everything that is set, and the default of what is not. Raises OptionError."""
    values = OptionValues(options, READ_OPTIONS)
    if streaming:
        values.refuse(ENDING, "a stream has no end; this is an option of batch reads")
    tags, sql = values.text("tags"), values.text("sql")
    if tags and sql:
        raise OptionError("tags and sql are set both; write the tags into the condition: TAGS IN ('A', 'B')")
    most, least = values.count("maxOffsetsPerTrigger"), values.count("minOffsetsPerTrigger")
    if most and least > most:
        raise OptionError(f"minOffsetsPerTrigger is {least} and maxOffsetsPerTrigger {most}; it can be that at most")
    return ReadOptions(
        url=values.url("namesrvAddr"),
        choice=topic_choice(values),
        starting=starting_position(values, streaming=streaming),
        ending=ending_position(values),
        tags=tags,
        sql=sql,
        fail_on_data_loss=values.boolean("failOnDataLoss", default=True),
        min_partitions=values.count("minPartitions"),
        max_records_per_partition=values.count("maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_s=values.duration_ms("maxTriggerDelay", 15 * 60 * 1_000) / 1_000,
        group=values.group("group"),
        read_from_slave=values.boolean("readFromSlave", default=False),
        include_properties=values.boolean("includeProperties", default=True),
        pull_batch_size=values.count("pullBatchSize", PULL_MESSAGES_MAX, most=PULL_MESSAGES_MAX),
        pull_timeout_s=values.count("pullTimeoutMs", 60_000) / 1_000,
        retries=values.count("fetchOffset.numRetries", 10, least=0),
        retry_interval_s=values.count("fetchOffset.retryIntervalMs", 1_000, least=0) / 1_000,
        filter_pushdown=values.boolean("filterPushdown", default=False),
    )
