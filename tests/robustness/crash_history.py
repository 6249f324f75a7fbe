"""What a workload has put into a store, and what a recovery may find of it.

Invariants: records are in the order of the log; a record's bytes are those that `put` gave to the log, checked once
against what was sent; what a recovery has cut off is cut off here too, so that it counts as wrong when it comes back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from mq_broker.core.batches import CQ_ENTRY, Batch
from mq_broker.store.message_store import PutResult
from mqproto.properties import java_string_hash
from mqproto.record import decode_record, is_sealed

QueueKey = tuple[str, int]


class WrongError(Exception):
    """The store has broken a promise; the message says which."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch as it was handed in."""

    topic: str
    queue_id: int
    bodies: tuple[bytes, ...]
    tag: str
    keys: tuple[str, ...]


@dataclass
class QueueHistory:
    """One queue: numbers of its records in the whole history, their places, and their bytes end to end."""

    numbers: list[int] = field(default_factory=list)
    log_offsets: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # in `data`
    keys: list[str] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    entries: bytearray = field(default_factory=bytearray)

    def data_between(self, first: int, last: int) -> bytes:
        """The records `first` to `last` - 1 of the queue."""
        begin = self.ends[first - 1] if first else 0
        return bytes(self.data[begin : self.ends[last - 1] if last else 0])

    def entries_between(self, first: int, last: int) -> bytes:
        """Their consume-queue entries."""
        return bytes(self.entries[first * CQ_ENTRY.size : last * CQ_ENTRY.size])


class History:
    """Every record that was put and not cut off since."""

    def __init__(self) -> None:
        self.ends: list[int] = []  # of each record, in the log
        self.queues: dict[QueueKey, QueueHistory] = {}

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def end(self) -> int:
        """Where the last record ends in the log."""
        return self.ends[-1] if self.ends else 0

    def below(self, log_offset: int) -> int:
        """How many records lie below this offset."""
        return bisect_right(self.ends, log_offset)

    def add(self, sent: Sent, batch: Batch, result: PutResult, file_bytes: int) -> None:
        """A batch that was put. Raises WrongError when it did not get the next place, or has other bytes."""
        queue = self.queues.setdefault((sent.topic, sent.queue_id), QueueHistory())
        data, at = bytes(batch.buffer), 0
        if result.base_queue_offset != len(queue.numbers):
            raise WrongError(f"queue offset {result.base_queue_offset} was given, {len(queue.numbers)} is the next")
        for body, key in zip(sent.bodies, sent.keys, strict=True):
            record = decode_record(data, at)
            found = (record.body, record.topic, record.queue_id, record.queue_offset)
            if found != (body, sent.topic, sent.queue_id, len(queue.numbers)) or not is_sealed(data, at, record.size):
                raise WrongError(f"put has made another record of {body[:40]!r}: {record}")
            place = result.base_log_offset + at
            next_file = -(-self.end // file_bytes) * file_bytes
            if record.log_offset != place or place not in {self.end, next_file}:
                raise WrongError(f"put has written log offset {record.log_offset} at {place} behind {self.end}")
            queue.numbers.append(len(self.ends))
            queue.log_offsets.append(place)
            queue.keys.append(key)
            queue.data += data[at : at + record.size]
            queue.ends.append(len(queue.data))
            queue.entries += CQ_ENTRY.pack(place, record.size, java_string_hash(sent.tag) if sent.tag else 0)
            at += record.size
            self.ends.append(place + record.size)

    def cut(self, count: int) -> History:
        """What is left when a recovery has found the first `count` records."""
        rest = History()
        rest.ends = self.ends[:count]
        for key, queue in self.queues.items():
            if kept := bisect_left(queue.numbers, count):
                rest.queues[key] = QueueHistory(
                    queue.numbers[:kept],
                    queue.log_offsets[:kept],
                    queue.ends[:kept],
                    queue.keys[:kept],
                    queue.data[: queue.ends[kept - 1]],
                    queue.entries[: kept * CQ_ENTRY.size],
                )
        return rest

    def expected_of(self, queue: QueueHistory, count: int, log_begin: int) -> tuple[int, int]:
        """The queue's first offset and its end when the log has `count` records and begins at `log_begin`."""
        last = bisect_left(queue.numbers, count)
        return min(bisect_left(queue.log_offsets, log_begin), last), last
