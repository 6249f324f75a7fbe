"""Which queue a row goes to, and the requests that its lane is cut into.

Invariant: the same rows in the same order give the same lanes and the same requests, as long as the topic has the same
queues; nothing here depends on time, speed or chance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mqclient import MessageQueue, NumberedMessage
from mqproto.properties import java_string_hash
from pyspark_mq.sink.options import ROWS_MAX, Chain, RowError, WriterIdentity, way_of_waiting

TURN_ROWS = 512  # so many rows one after the other go to one queue
REQUEST_ROWS_MAX = 512
REQUEST_BYTES_MAX = 512 * 1024
ROW_OVERHEAD_BYTES = 256  # of a record, beside its body and its properties; about
REQUESTS_MAX = 8_000  # of one queue; what a broker remembers of one producer and queue is bounded


@dataclass(frozen=True, slots=True)
class Request:
    """Rows that are stored whole. The first has the number `base_sequence`."""

    lane: Lane
    messages: Sequence[NumberedMessage]
    base_sequence: int


@dataclass(slots=True)
class Lane:
    """Rows of one queue that wait in the same way."""

    queue: MessageQueue
    way: int
    chain: Chain
    rows: int = 0  # in requests
    waiting: list[NumberedMessage] = field(default_factory=list)
    waiting_bytes: int = 0


class Lanes:
    """Those of one partition. `queues` gives a topic's queues, sorted."""

    def __init__(self, identity: WriterIdentity, *, by_key: bool) -> None:
        self._identity = identity
        self._by_key = by_key
        self._lanes: dict[tuple[MessageQueue, int], Lane] = {}
        self._rows: dict[str, int] = {}  # by topic
        self._requests: dict[MessageQueue, int] = {}

    def add(self, one: NumberedMessage, queues: Sequence[MessageQueue]) -> Request | None:
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

    def _queue(self, one: NumberedMessage, queues: Sequence[MessageQueue]) -> MessageQueue:
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
