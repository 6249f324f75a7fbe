"""The rows of one partition on their way to the brokers: as messages, in lanes, in requests.

Invariants: what a column says is sent as it is, or the row is rejected; nothing is cut, replaced or left out, but the
properties that belong to the queue, of which a message gets its own. The same rows in the same order give the same
lanes and the same requests, as long as the topic has the same queues; nothing in that depends on time, speed or chance.
Of one queue one request is unanswered at a time, so that what is stored of a lane is its beginning; no more than
BYTES_UNSENT_MAX wait; after the first failure nothing more is sent, and the failure is raised.

Each request is compared with what is stored under its first number before the next one of its lane is sent: the unique
id of a row says what all rows up to the end of its request are, so one look at the first row tells whether all of them
are the same. That a request was new says nothing of the next one: another attempt of the task (a speculative one, or a
worker of a dead driver) may be sending other rows under the same numbers. Of two attempts that differ at most one ends
without an error, and what it has sent is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from mqclient import (
    ClientConfig,
    Message,
    MessageQueue,
    MessageRejectedError,
    MQClientError,
    NoRouteError,
    OutcomeUnknownError,
    RetryableError,
)
from mqclient.producer.idempotent_producer import IdempotentProducer, SequencedMessage
from mqproto.properties import RESERVED, java_string_hash
from pyspark_mq.sink.options import (
    ROWS_MAX,
    Chain,
    ReplayDiffersError,
    RowError,
    SinkAwayError,
    SinkOptions,
    SinkRejectedError,
    SinkSchemaError,
    WriterIdentity,
    way_of_waiting,
)

BYTES_UNSENT_MAX = 16 * 1024 * 1024
REQUEST_TIMEOUT_S = 30.0
TURN_ROWS = 512  # so many rows one after the other go to one queue
REQUEST_ROWS_MAX = 512
REQUEST_BYTES_MAX = 512 * 1024
ROW_OVERHEAD_BYTES = 256  # of a record, beside its body and its properties; about
REQUESTS_MAX = 8_000  # of one queue; what a broker remembers of one producer and queue is bounded


class PartitionSender:
    """An async context manager; `take` Arrow batches, then `finish`."""

    def __init__(self, options: SinkOptions, identity: WriterIdentity) -> None:
        self._options = options
        self._identity = identity
        self._lanes = Lanes(identity, by_key=options.by_key)
        config = ClientConfig(request_timeout_s=REQUEST_TIMEOUT_S)
        self._producer = IdempotentProducer(options.url, identity.producer_id, client_config=config)
        self._queues: dict[str, Sequence[MessageQueue]] = {}  # by topic
        self._lines: dict[MessageQueue, asyncio.Queue[Request]] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._failure: Exception | None = None
        self._unsent_bytes = 0
        self._progress = asyncio.Event()
        self.rows = 0
        self.rows_recognised = 0

    async def __aenter__(self) -> PartitionSender:
        await self._producer.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        await self._producer.shutdown()

    async def take(self, batch: pa.RecordBatch) -> None:
        """Check the rows, then send them; returns when there is room for more. Raises SinkError."""
        self._check()
        checked = []
        for number, message in enumerate(messages(batch, self._options.topic, self.rows), self.rows):
            try:
                checked.append(self._producer.checked(message))
            except MessageRejectedError as error:
                raise RowError(f"row {number} of partition {self._identity.partition}: {error}") from error
        for topic in sorted({one.message.topic for one in checked}):
            if topic not in self._queues:
                self._queues[topic] = await self._write_queues(topic)
        self.rows += len(checked)
        for one in checked:
            request = self._lanes.add(one, self._queues[one.message.topic])
            if request is not None:
                await self._enqueue(request)

    async def finish(self) -> None:
        """Send the rest; returns when everything is stored. Raises SinkError."""
        for request in self._lanes.rest():
            await self._enqueue(request)
        await self.drain()

    async def drain(self) -> None:
        """Wait until every full request is stored. Raises SinkError."""
        while self._unsent_bytes:
            await self._wait()
        self._check()

    async def _enqueue(self, request: Request) -> None:
        while self._unsent_bytes > BYTES_UNSENT_MAX:
            await self._wait()
        self._check()
        self._unsent_bytes += _size(request.messages)
        queue = request.lane.queue
        if queue not in self._lines:
            self._lines[queue] = asyncio.Queue()
            self._workers.append(asyncio.create_task(self._send_all(queue), name=f"mq sink {queue}"))
        self._lines[queue].put_nowait(request)

    async def _wait(self) -> None:
        self._check()
        self._progress.clear()
        await self._progress.wait()

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _send_all(self, queue: MessageQueue) -> None:
        line = self._lines[queue]
        try:
            while self._failure is None:
                request = await line.get()
                await self._send(request)
                self._unsent_bytes -= _size(request.messages)
                self._progress.set()
        except Exception as error:  # whatever it is, the rows have not been sent and the task has to fail
            self._failure = self._failure or error
            self._progress.set()

    async def _send(self, request: Request) -> None:
        queue = request.lane.queue
        where = f"partition {self._identity.partition} to {queue}"
        try:
            log_offset, born_ms = await self._producer.send(
                queue,
                request.messages,
                request.base_sequence,
                first_unanswered=self._identity.first_number,
                timeout=self._options.send_timeout_s,
            )
            if log_offset >= 0:
                await self._compare(request, log_offset, born_ms)
        except (RetryableError, OutcomeUnknownError) as error:
            raise SinkAwayError(f"{where}: not stored within {self._options.send_timeout_s:g} s: {error}") from error
        except MQClientError as error:
            raise SinkRejectedError(f"{where}: {error}") from error

    async def _compare(self, request: Request, log_offset: int, born_ms: int) -> None:
        """Is what stands under the first row's number this row? Raises ReplayDiffersError."""
        queue, first = request.lane.queue, request.messages[0]
        stored = await self._producer.stored_at(queue.broker_name, log_offset)
        if stored is None:
            return
        if stored.unique_id != first.unique_id:
            raise ReplayDiffersError(
                f"partition {self._identity.partition} of batch {self._identity.batch_id} of {self._identity.name} was "
                f"sent before with other rows: at log offset {log_offset} of {queue} stands {stored.unique_id}, now it "
                f"would be {first.unique_id}. Rows, their order and the partitions have to be the same when a batch is "
                f'replayed, and the topic needs the same queues; docs/guides/spark.md, "Exactly once", tells what to do'
            )
        if stored.born_timestamp_ms != born_ms:
            self.rows_recognised += len(request.messages)

    async def _write_queues(self, topic: str) -> Sequence[MessageQueue]:
        try:
            queues = await self._producer.write_queues(topic)
        except NoRouteError as error:
            raise SinkAwayError(
                f"the topic {topic!r} cannot be written: {error}. The sink makes no topics; create it with "
                f"`mqadmin updateTopic`"
            ) from error
        if not queues:
            raise SinkRejectedError(f"the topic {topic!r} has no queue that may be written")
        return queues


def _size(rows: Sequence[SequencedMessage]) -> int:
    return sum(len(one.body) for one in rows)


@dataclass(frozen=True, slots=True)
class Request:
    """Rows that are stored whole. The first has the number `base_sequence`."""

    lane: Lane
    messages: Sequence[SequencedMessage]
    base_sequence: int


@dataclass(slots=True)
class Lane:
    """Rows of one queue that wait in the same way."""

    queue: MessageQueue
    way: int
    chain: Chain
    rows: int = 0  # in requests
    waiting: list[SequencedMessage] = field(default_factory=list)
    waiting_bytes: int = 0


class Lanes:
    """Those of one partition. `queues` gives a topic's queues, sorted."""

    def __init__(self, identity: WriterIdentity, *, by_key: bool) -> None:
        self._identity = identity
        self._by_key = by_key
        self._lanes: dict[tuple[MessageQueue, int], Lane] = {}
        self._rows: dict[str, int] = {}  # by topic
        self._requests: dict[MessageQueue, int] = {}

    def add(self, one: SequencedMessage, queues: Sequence[MessageQueue]) -> Request | None:
        """Take the row in; the request that it has filled. Raises RowError when there are too many."""
        queue, way = self._queue(one, queues), way_of_waiting(one.message)
        lane = self._lanes.get((queue, way))
        if lane is None:
            identity = self._identity
            seed = f"{identity.name}:{identity.partition}:{identity.batch_id}:{queue}:{way}"
            lane = self._lanes[queue, way] = Lane(queue, way, Chain(seed))
        lane.waiting.append(one)
        lane.waiting_bytes += len(one.message.body) + len(one.properties) + ROW_OVERHEAD_BYTES
        full = len(lane.waiting) >= REQUEST_ROWS_MAX or lane.waiting_bytes >= REQUEST_BYTES_MAX
        return self._cut(lane) if full else None

    def rest(self) -> Iterator[Request]:
        """What has filled no request."""
        for lane in self._lanes.values():
            if lane.waiting:
                yield self._cut(lane)

    def _queue(self, one: SequencedMessage, queues: Sequence[MessageQueue]) -> MessageQueue:
        message = one.message
        if self._by_key and message.keys:
            key = message.keys if isinstance(message.keys, str) else message.keys[0]
            return queues[java_string_hash(key) % len(queues)]
        row = self._rows.get(message.topic, 0)
        self._rows[message.topic] = row + 1
        turn = self._identity.partition + self._identity.batch_id + row // TURN_ROWS
        return queues[turn % len(queues)]

    def _cut(self, lane: Lane) -> Request:
        taken, lane.waiting, lane.waiting_bytes = lane.waiting, [], 0
        requests = self._requests[lane.queue] = self._requests.get(lane.queue, 0) + 1
        if requests > REQUESTS_MAX or lane.rows + len(taken) > ROWS_MAX:
            raise RowError(
                f"partition {self._identity.partition} has more rows for the queue {lane.queue} than are recognised "
                f"when they are sent again: more than {REQUESTS_MAX:,} requests. Write in more partitions, or in "
                f"smaller batches (maxOffsetsPerTrigger)"
            )
        ids = lane.chain.ids([(one.properties, one.message.body) for one in taken])
        for one, unique_id in zip(taken, ids, strict=True):
            one.unique_id = unique_id
        request = Request(lane, taken, self._identity.number(lane.way, lane.rows))
        lane.rows += len(taken)
        return request


Columns = dict[str, tuple[str, tuple[DataType, ...]]]

COLUMNS: Columns = {
    "body": ("string or binary", (StringType(), BinaryType())),
    "topic": ("string", (StringType(),)),
    "tag": ("string", (StringType(),)),
    "key": ("string", (StringType(),)),
    "keys": ("array<string>", (ArrayType(StringType()),)),
    "properties": ("map<string,string>", (MapType(StringType(), StringType()),)),
    "delayLevel": ("int", (IntegerType(), ByteType(), ShortType(), LongType())),
    "deliverAt": ("timestamp", (TimestampType(),)),
}


def check_columns(schema: StructType, topic: str) -> None:
    """Raises SinkSchemaError with what is allowed; `topic` is the option's, empty without."""
    names = schema.fieldNames()
    for column in schema:
        if column.name not in COLUMNS:
            raise SinkSchemaError(
                f"the column {column.name!r} is none of a message's; allowed are {', '.join(COLUMNS)}. "
                f"Rename it, drop it, or put it into the map `properties`"
            )
        allowed, types = COLUMNS[column.name]
        if column.dataType.simpleString() not in {one.simpleString() for one in types}:
            raise SinkSchemaError(
                f"the column {column.name!r} is {column.dataType.simpleString()}; it has to be {allowed}"
            )
    if len(set(names)) != len(names):
        raise SinkSchemaError(f"the columns are {', '.join(names)}; each can be there once")
    if "body" not in names:
        raise SinkSchemaError(f"there is no column body; a message needs one. The columns are {', '.join(names)}")
    if not topic and "topic" not in names:
        raise SinkSchemaError("nothing says the topic: set the option topic, or give the table a column topic")
    if topic and "topic" in names:
        raise SinkSchemaError("the topic is an option and a column both; leave one of them out")
    for one, other in (("key", "keys"), ("delayLevel", "deliverAt")):
        if one in names and other in names:
            raise SinkSchemaError(f"there is a column {one} and a column {other}; a message takes one of them")


def messages(batch: pa.RecordBatch, topic: str, first_row: int) -> Iterator[Message]:
    """One for each row. Raises RowError, which counts the rows of the partition from `first_row`."""
    names = set(batch.schema.names)

    def column(name: str) -> Iterator[Any]:
        return iter(batch.column(name).to_pylist()) if name in names else repeat(None)

    rows = zip(
        range(first_row, first_row + batch.num_rows),
        column("body"), repeat(topic) if topic else column("topic"), column("tag"), column("key"), column("keys"),
        column("properties"), column("delayLevel"), column("deliverAt"),
        strict=False,
    )  # fmt: skip
    for number, body, to, tag, key, keys, properties, delay_level, deliver_at in rows:
        if body is None:
            raise RowError(f"row {number}: the body is null; a message needs one, of a byte at least")
        if to is None:
            raise RowError(f"row {number}: the topic is null")
        yield Message(
            to,
            body.encode() if isinstance(body, str) else body,
            tag=tag,
            keys=_keys(number, key, keys),
            properties=_properties(number, properties) if properties else None,
            delay_level=delay_level or 0,
            deliver_at=deliver_at,
        )


def _keys(number: int, key: str | None, keys: Sequence[str | None] | None) -> str | Sequence[str]:
    if keys is None:
        return key.split(" ") if key and " " in key else key or ""  # several, as the source's column key has them
    if None in keys:
        raise RowError(f"row {number}: one of its keys is null")
    return [one for one in keys if one is not None]


def _properties(number: int, pairs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """In the order of their names: a map has none, and a replay has to give the same message."""
    found = {}
    for name, value in sorted(pairs, key=lambda pair: pair[0]):
        if value is None:
            raise RowError(f"row {number}: the property {name!r} is null; leave it out of the map, or make it text")
        if name not in RESERVED:
            found[name] = value
    return found
