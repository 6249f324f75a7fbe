"""What clients of a broker were told, and whether a later broker keeps to it.

Invariants: a message counts as promised from its acknowledgement on; one that was rejected must never be seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mq_broker.core.pulling import PullQuery
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import BatchOutcome
from mqproto.codes import ResponseCode
from mqproto.record import Record, iter_records

PULL_BYTES = 1 << 20
QueueKey = tuple[str, int]
DOUBTFUL = frozenset({ResponseCode.SERVICE_NOT_AVAILABLE})  # only the next start can tell


class BrokenPromiseError(Exception):
    """What the broker does is not what it said; the message says how."""


class ReadRejectedError(Exception):
    """The broker could not read just now, and said so."""


@dataclass
class Journal:
    """Promises by queue and queue offset; `delayed` arrive in their topic later, at least once."""

    promised: dict[QueueKey, dict[int, tuple[bytes, int]]] = field(default_factory=dict)  # body, log offset
    delayed: set[tuple[str, bytes]] = field(default_factory=set)
    rejected: set[bytes] = field(default_factory=set)
    known: set[bytes] = field(default_factory=set)  # every body that was ever sent
    expired_below: int = 0  # the log offset at which the broker that was asked last let its log begin

    def sent(self, key: QueueKey, bodies: Sequence[bytes], outcome: BatchOutcome, *, delayed: bool = False) -> None:
        """A batch has got its answer."""
        self.known.update(bodies)
        if outcome.code is ResponseCode.SUCCESS and delayed:
            self.delayed.update((key[0], body) for body in bodies)
        elif outcome.code is ResponseCode.SUCCESS:
            queue, log_offset = self.promised.setdefault(key, {}), outcome.base_log_offset
            for offset, body in enumerate(bodies, outcome.base_queue_offset):
                if offset in queue:
                    raise BrokenPromiseError(f"queue offset {offset} of {key} was given twice")
                queue[offset] = (body, log_offset)
        elif outcome.code not in DOUBTFUL:
            self.rejected.update(bodies)

    async def compare(self, broker: Broker) -> None:
        """Read everything that was promised and has not expired. Raises BrokenPromiseError, ReadRejectedError."""
        begin = max(broker.store.log_begin, self.expired_below)
        for key, queue in self.promised.items():
            found = {record.queue_offset: record for record in await read_queue(broker, *key)}
            low = min(found, default=0)
            if sorted(found) != list(range(low, low + len(found))):
                raise BrokenPromiseError(f"queue {key} has the offsets {sorted(found)}")
            for offset, (body, log_offset) in queue.items():
                record = found.get(offset)
                # A batch may reach into the next file only as a whole: its first record's file decides.
                if record is None and log_offset >= begin:
                    raise BrokenPromiseError(
                        f"message {offset} of {key} is missing; {low} to {low + len(found)} are there"
                    )
                if record is not None and record.body != body:
                    raise BrokenPromiseError(f"message {offset} of {key} is {record.body[:20]!r}, not {body[:20]!r}")
            for record in found.values():
                if record.body in self.rejected or record.body not in self.known:
                    raise BrokenPromiseError(f"{record.body[:20]!r} in {key} was rejected, or never sent")

    async def missing_delayed(self, broker: Broker) -> list[bytes]:
        """What is delayed and has not arrived in its topic yet. Raises ReadRejectedError."""
        missing = []
        for topic in {topic for topic, _ in self.delayed}:
            found = {record.body for record in await read_queue(broker, topic, 0)}
            missing += [body for wanted, body in self.delayed if wanted == topic and body not in found]
        return missing


async def read_queue(broker: Broker, topic: str, queue_id: int) -> list[Record]:
    """All of one queue, as a consumer gets it. Raises ReadRejectedError."""
    records: list[Record] = []
    offset, _ = broker.store.queue_bounds(topic, queue_id)
    while True:
        query = PullQuery("readers", topic, queue_id, offset, 32, PULL_BYTES, "*")
        try:
            result = broker.pulling.pull_hot(query) or await broker.pulling.pull(query)
        except OSError as error:
            raise ReadRejectedError(str(error)) from error
        if result.code is not ResponseCode.SUCCESS and result.code is not ResponseCode.TOPIC_NOT_EXIST:
            raise ReadRejectedError(f"{result.code.name}: {result.remark}")
        if result.next_begin_offset == offset or result.code is ResponseCode.TOPIC_NOT_EXIST:
            return records
        records += iter_records(result.records)
        offset = result.next_begin_offset
