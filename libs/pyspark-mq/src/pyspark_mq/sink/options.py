"""The options of writing, parsed once (MISSION Y5); docs/spark.md explains each with an example."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mqproto.names import IllegalNameError, check_user_topic
from pyspark_mq.errors import OptionError
from pyspark_mq.option_values import OptionValues
from pyspark_mq.sink.identity import BATCH_ID_MAX

WRITE_OPTIONS = ("namesrvAddr", "topic", "queueBy", "writeId", "batchId", "sendTimeoutMs")
SPARKS_OWN = ("checkpointLocation", "path", "queryName")  # Spark hands them on, for sinks that write files
SEND_TIMEOUT_MS = 120_000  # as Kafka's delivery.timeout.ms
TURNS, KEY = "turns", "key"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """`topic` is empty when a column says it; `write_id` when nothing recognises a repeated batch write. Of writes with
    one `write_id`, the one with the highest `batch_id` is the last that is repeated.
    """

    url: str
    topic: str
    by_key: bool
    write_id: str
    send_timeout_s: float
    batch_id: int = 0


def sink_options(options: Mapping[str, str], *, streaming: bool) -> SinkOptions:
    """Everything that is set, and the default of what is not. Raises OptionError."""
    own = {name.lower() for name in SPARKS_OWN}
    values = OptionValues(
        {name: value for name, value in options.items() if name.lower() not in own}, WRITE_OPTIONS, "writing"
    )
    if streaming:
        values.refuse(("writeId", "batchId"), "a stream is known by its checkpoint; this is an option of batch writes")
    elif not values.has("writeId"):
        values.refuse(("batchId",), "writeId is not: it names what the batches belong to")
    topic = values.text("topic")
    try:
        if topic:
            check_user_topic(topic)
    except IllegalNameError as error:
        raise OptionError(f"topic: {error}") from None
    queue_by = values.text("queueBy", TURNS)
    if queue_by not in (TURNS, KEY):
        raise OptionError(f"queueBy is {queue_by!r}; allowed are {TURNS} and {KEY}")
    return SinkOptions(
        url=values.url("namesrvAddr"),
        topic=topic,
        by_key=queue_by == KEY,
        write_id=values.text("writeId"),
        send_timeout_s=values.count("sendTimeoutMs", SEND_TIMEOUT_MS) / 1_000,
        batch_id=values.count("batchId", least=0, most=BATCH_ID_MAX),
    )
