"""The options of the sink, its errors, and the identity of what it writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from mqclient import Message
from mqproto.names import IllegalNameError, check_user_topic
from mqproto.properties import RETURNING_PRODUCERS_FROM, SEQUENCE_DIGITS_MAX, WRITE_PRODUCERS_FROM
from pyspark_mq.errors import MqSourceError, OptionError
from pyspark_mq.options import OptionValues

# What the sink raises beside OptionError; the root is that of the data source.
#
# MqSourceError
#  └─ SinkError
#      ├─ SinkSchemaError       columns that cannot be written: the sentence says which are allowed
#      ├─ RowError              a row that is no message: the sentence says which row and why
#      ├─ SinkAwayError         no broker has taken the rows in time: run it again, what is stored is recognised
#      ├─ SinkRejectedError     a broker rejects the rows for good
#      └─ ReplayDiffersError    a replayed batch has other rows than before where some of them are stored already


class SinkError(MqSourceError):
    """The rows of a partition could not all be sent."""


class SinkSchemaError(SinkError):
    """Nothing was sent."""


class RowError(SinkError):
    """Rows before it may have been sent; a replay recognises them."""


class SinkAwayError(SinkError):
    """Asking again may help."""


class SinkRejectedError(SinkError):
    """Asking again will not help."""


class ReplayDiffersError(SinkError):
    """Going on would lose rows or send them twice, so the batch stops here."""


# The options of writing, parsed once (mechanism Y5); docs/guides/spark.md explains each with an example.

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
        values.reject(("writeId", "batchId"), "a stream is known by its checkpoint; this is an option of batch writes")
    elif not values.has("writeId"):
        values.reject(("batchId",), "writeId is not: it names what the batches belong to")
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


# The producer and the numbers of a batch, derived from what a replay has again (ADR "A sink that is recognised").
#
# A number is made of the batch id, the kind of waiting, and the place in the lane: the rows of one partition that go to
# one queue and wait in the same way.
#
# Invariants: of one producer and queue no two rows have the same number, over all batches; numbers of a later batch are
# larger; the same rows in the same order, in the same partition of the same batch, have the same numbers and the same
# unique ids, whichever process sends them; a row's unique id depends on every row before it in its lane.

BATCH_BITS, WAY_BITS = 32, 5
ROWS_MAX = (1 << (BATCH_BITS - WAY_BITS)) - 1  # of one lane
BATCH_ID_MAX = 10**SEQUENCE_DIGITS_MAX // (1 << BATCH_BITS) - 2  # 232 million
TIMED = 19  # a way of waiting, behind 0 (not at all) and the 18 delay levels
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """One partition of one batch. `name` names the query, or the batch write; only one that `returns` is sent again
    after its job.
    """

    name: str
    partition: int
    batch_id: int = 0
    returns: bool = True

    @property
    def producer_id(self) -> int:
        """The same for all batches of the query: what a broker remembers does not grow with them."""
        of_writes = 2 * RETURNING_PRODUCERS_FROM - WRITE_PRODUCERS_FROM
        digest = int.from_bytes(blake2b(f"{self.name}:{self.partition}".encode(), digest_size=8).digest(), "big")
        if not self.returns:
            return WRITE_PRODUCERS_FROM + digest % of_writes
        producer_id = RETURNING_PRODUCERS_FROM + digest % RETURNING_PRODUCERS_FROM
        return producer_id if producer_id < WRITE_PRODUCERS_FROM else producer_id - of_writes

    @property
    def first_number(self) -> int:
        """Below it nothing is ever sent again: earlier batches are committed."""
        return self.batch_id << BATCH_BITS

    def number(self, way: int, place: int) -> int:
        """Of the row at `place` (from 0) of a lane."""
        return self.first_number + (way << (BATCH_BITS - WAY_BITS)) + place + 1


def way_of_waiting(message: Message) -> int:
    """0, its delay level, or TIMED."""
    return TIMED if message.deliver_at is not None else message.delay_level


class Chain:
    """The unique ids of a lane: each says what all rows up to the end of its request are."""

    def __init__(self, seed: str) -> None:
        self._digest = blake2b(seed.encode(), digest_size=DIGEST_BYTES).digest()

    def ids(self, contents: list[tuple[str, bytes]]) -> list[str]:
        """Of the rows of the next request, each as (properties, body)."""
        whole = blake2b(self._digest, digest_size=DIGEST_BYTES)
        for properties, body in contents:
            text = properties.encode()
            whole.update(b"%d %d " % (len(text), len(body)))
            whole.update(text)
            whole.update(body)
        self._digest = whole.digest()
        return [
            blake2b(b"%d" % place, key=self._digest, digest_size=DIGEST_BYTES).hexdigest().upper()
            for place in range(len(contents))
        ]
