"""Records that are in memory shortly before they are due, so that at their time nothing waits for the disk.

Invariant: they are in the order of their delivery.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from mq_broker.core.batches import Batch
from mq_broker.core.rewrite import deliver_record
from mqproto.record import Record

log = logging.getLogger(__name__)

AHEAD_MS = 100  # how long before they are due they are read
AHEAD_RECORDS_MAX, AHEAD_BYTES_MAX = 64, 1024 * 1024  # read at a time, within a millisecond; one record may be larger
DELIVER_RECORDS_MAX = 32  # delivered in one step, after which others have their turn


class Ready(NamedTuple):
    """A waiting record, made ready for its delivery; times are milliseconds since 1970."""

    due_ms: int
    stored_ms: int
    queue_offset: int
    log_offset: int
    batch: Batch


def make_ready(level: int, due_ms: int, record: Record) -> Ready | None:
    """What a waiting record of the queue with this number delivers at its due time; None when nobody can tell."""
    try:
        batch = deliver_record(record, (level, record.queue_offset))
    except ValueError as error:
        log.warning("%s; it is passed over", error)
        return None
    return Ready(due_ms, record.store_timestamp_ms, record.queue_offset, record.log_offset, batch)


class Ahead:
    """The first records of one queue of waiting messages."""

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
