"""The end of a wait: a record that is due goes to the topic and queue it was sent to (mechanism D5)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mq_broker.core.batches import Batch, runs
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayProgress, Lateness
from mq_broker.core.life import NO_SPANS, Operation, Spans, Step, traced
from mq_broker.core.rewrite import deliver_record
from mq_broker.core.topics import waiting_queue
from mq_broker.store.message_store import MessageStore
from mqproto.record import Record

log = logging.getLogger(__name__)

Listener = Callable[[int, Sequence[int]], None]
IsVoid = Callable[[str, int], bool]  # whether what waits at this log offset for this topic goes nowhere any more


@dataclass
class Delivery:
    """`put` appends batches to the log, creating topics where need be, and raises StoreWriteError.

    It takes `run_bytes_max` bytes with one write.

    Invariants: nothing is delivered that is done already, and what is delivered is done in the same step of the event
    loop, so that a message is either recalled or delivered; a write that the store rejects delivers nothing of it. What
    waits for a retry topic whose group has been deleted with its offsets since is done without a message: a later group
    of the name has nothing to try again. The deletion's record says so, also after a restart and on a replica.
    """

    progress: DelayProgress
    time: BrokerTime
    put: Callable[[list[Batch], int], object]
    run_bytes_max: int
    is_void: IsVoid
    spans: Spans = NO_SPANS
    _lateness: dict[int, Lateness] = field(default_factory=dict)
    _listeners: list[Listener] = field(default_factory=list)

    def deliver_due(self, level: int, ahead: Ahead, now_ms: int, fast_ms: int = 0) -> None:
        """Deliver some of what is due of the queue with this number. Raises StoreError; then it is ahead as before.

        `now_ms`, and what is ahead, may be by a clock that is `fast_ms` ahead of broker time.
        """
        due = ahead.take_due(now_ms)
        try:
            self._deliver(level, due, fast_ms)
        except BaseException:
            ahead.put_back(due)
            raise

    def lateness(self, level: int) -> Lateness:
        """How late the deliveries of this queue were since the process started."""
        return self._lateness.setdefault(level, Lateness())

    def on_delivered(self, listener: Listener) -> None:
        """Have `listener` told of each step: the queue's number, and how late each delivery was in ms."""
        self._listeners.append(listener)

    def _deliver(self, level: int, due: Sequence[Ready], fast_ms: int) -> None:
        for one in due:
            if self.is_void(one.batch.topic, one.log_offset):
                self.progress.done(level, one.queue_offset)
        waiting = [one for one in due if not self.progress.is_done(level, one.queue_offset)]
        for run in runs(waiting, self.run_bytes_max, lambda one: one.batch):
            now_ms, store_ms = self.time.now_ms(), self.time.stamp_ms()
            with traced(self.spans, ((one.batch, _wait(level, one, store_ms, fast_ms)) for one in run)):
                self.put([one.batch for one in run], store_ms)
            for one in run:
                self.progress.done(level, one.queue_offset)
            self._count(level, [now_ms + fast_ms - one.due_ms for one in run])

    def _count(self, level: int, lateness_ms: Sequence[int]) -> None:
        self.lateness(level).add(lateness_ms)
        for listener in self._listeners:
            listener(level, lateness_ms)


def _wait(level: int, one: Ready, now_ms: int, fast_ms: int) -> Step:
    return Step(Operation.WAIT, one.stored_ms, now_ms, due_ms=one.due_ms - fast_ms, delay_level=max(level, 0))


AHEAD_MS = 100  # how long before they are due they are read
AHEAD_RECORDS_MAX, AHEAD_BYTES_MAX = 64, 1024 * 1024  # read at a time, within a millisecond; one record may be larger
DELIVER_RECORDS_MAX = 32  # delivered in one step of the event loop


class Ready(NamedTuple):
    """A waiting record, made ready for its delivery; times are milliseconds since 1970."""

    due_ms: int
    stored_ms: int
    queue_offset: int
    log_offset: int
    batch: Batch


def make_ready(level: int, due_ms: int, record: Record) -> Ready | None:
    """What a waiting record of the queue with this number delivers at its due time; None when the record does not
    tell."""
    try:
        batch = deliver_record(record, (level, record.queue_offset))
    except ValueError as error:
        log.warning("%s; it is passed over", error)
        return None
    return Ready(due_ms, record.store_timestamp_ms, record.queue_offset, record.log_offset, batch)


class Ahead:
    """Records that are in memory shortly before they are due, so that at their time nothing waits for the disk.

    Invariant: they are in the order of their delivery.
    """

    def __init__(self) -> None:
        self._records: deque[Ready] = deque()
        self._bytes = 0

    @property
    def first_due_ms(self) -> int | None:
        """When the first one is due; None without one."""
        return self._records[0].due_ms if self._records else None

    @property
    def last_due_ms(self) -> int | None:
        """When the last one is due; None without one."""
        return self._records[-1].due_ms if self._records else None

    def first_due_ms_but(self, is_over: Callable[[int], bool]) -> int | None:
        """The same without records whose queue offset `is_over`; if all of them are, when the last one was due."""
        return next((one.due_ms for one in self._records if not is_over(one.queue_offset)), self.last_due_ms)

    @property
    def has_room(self) -> bool:
        """Whether it is worth reading more."""
        return self._bytes < AHEAD_BYTES_MAX and len(self._records) <= AHEAD_RECORDS_MAX // 2

    @property
    def bytes_free(self) -> int:
        """How many bytes should be read at the most, 0 or less when there are more already."""
        return AHEAD_BYTES_MAX - self._bytes

    def add(self, records: Iterable[Ready]) -> None:
        """Records that are delivered behind those that are here."""
        for one in records:
            self._records.append(one)
            self._bytes += len(one.batch.buffer)

    def take_due(self, now_ms: int) -> list[Ready]:
        """Take out what is due, as much as is delivered in one step."""
        due: list[Ready] = []
        while self._records and self._records[0].due_ms <= now_ms and len(due) < DELIVER_RECORDS_MAX:
            due.append(self._records.popleft())
            self._bytes -= len(due[-1].batch.buffer)
        return due

    def put_back(self, due: Sequence[Ready]) -> None:
        """What `take_due` has given could not be delivered."""
        self._records.extendleft(reversed(due))
        self._bytes += sum(len(one.batch.buffer) for one in due)

    def take_all(self) -> list[Ready]:
        """Take everything out."""
        taken = list(self._records)
        self._records.clear()
        self._bytes = 0
        return taken


# What every queue of waiting messages asks: how many records wait, which are lost, and what comes first.


def waiting_in(store: MessageStore, progress: DelayProgress, level: int) -> int:
    """How many records of the queue with this number are not done."""
    queue = store.queue(*waiting_queue(level))
    if queue is None:
        return 0
    begin = max(progress.next_offset(level), queue.min_offset)
    return max(0, queue.max_offset - begin - progress.done_ahead(level))


def give_up_lost(progress: DelayProgress, level: int, scanned: Iterable[int], found: Container[int]) -> None:
    """Of these offsets of the queue, those not found are done: lost to damage, or of no use, as was reported."""
    for offset in scanned:
        if offset not in found:
            progress.done(level, offset)


def first(*times: int | None) -> int | None:
    """The earliest of these times; None without one."""
    return min((at for at in times if at is not None), default=None)
