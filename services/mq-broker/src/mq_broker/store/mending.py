"""A consume-queue entry that is wrong, and a record that is damaged: the log around them tells what is so.

Invariants: an entry is replaced only by what whole records of the log say, or by the stretch of damage in which its
message was lost; what is found damaged is in quarantine before anything points to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.rewrite import entry_tags_code
from mq_broker.store.cold_reads import ColdReads
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ENTRY_SIZE_MAX, ConsumeQueue
from mq_broker.store.log_scan import Damage, scan_log
from mq_broker.store.proof import is_proven
from mq_broker.store.quarantine import Quarantine
from mqproto.record import Record
from osenv import SyncError

log = logging.getLogger(__name__)

NEIGHBOURS_MAX = 1_024  # entries looked at around a broken one for those that are right


class NotInLogError(OSError):
    """A consume queue speaks of a message that the log does not have."""


@dataclass
class Mender:
    """Puts queues in order. `fence` is told of a sync that has failed."""

    log: CommitLog
    quarantine: Quarantine
    cold: ColdReads
    fence: Callable[[OSError], None]

    async def trim(self, queue: ConsumeQueue, floor: int) -> None:
        """Let the queue begin at its first message that is still in the log, which began at `floor` before.

        Raises OSError.
        """
        first = await self.cold.read(lambda: self._first_left(queue))
        while first > queue.first_offset and await self.cold.read(partial(self._is_doubtful, queue, first - 1, floor)):
            try:
                await self.mend(queue, first - 1)
            except NotInLogError:
                break
            if not await self.cold.read(partial(self._is_there, queue, first - 1)):
                break
            first -= 1
        queue.trim(first)

    def trim_at_start(self, queue: ConsumeQueue) -> None:
        """The same before anything else runs; may block for long. Raises OSError."""
        first = self._first_left(queue)
        while first > queue.first_offset and self._is_doubtful(queue, first - 1, 0):
            try:
                begin, entries, damages = self._tell_again(queue, first - 1)
            except NotInLogError:
                break
            for damage in damages:
                self.quarantine.put_aside(self.log.files, damage)
            queue.mend(begin, entries)
            first -= 1
        queue.trim(first)

    def _first_left(self, queue: ConsumeQueue) -> int:
        """The first entry whose message is there.

        A damaged entry may mislead the search in either direction: the message that it finds has to prove itself, and
        none of those before it may.
        """
        first = queue.first_offset
        while True:
            first = queue.first_at(self.log.begin, begin=first)
            if first == queue.max_offset or self._is_there(queue, first):
                break
            first += 1
        low = max(queue.first_offset, first - NEIGHBOURS_MAX)
        while (earlier := next((at for at in range(low, first) if self._is_there(queue, at)), None)) is not None:
            first, low = earlier, max(queue.first_offset, earlier - NEIGHBOURS_MAX)
        return first

    def _is_doubtful(self, queue: ConsumeQueue, offset: int, floor: int) -> bool:
        """Whether the entry is not what that of a deleted message looks like: behind the one before, below the log."""
        log_offset, size, _ = queue.entry(offset)
        before = queue.entry(offset - 1)[0] if offset > queue.first_offset else floor
        return size <= 0 or not before <= log_offset < self.log.begin

    def _is_there(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether the message stands in the log, or was lost to known damage there."""
        log_offset, size, _ = queue.entry(offset)
        if log_offset >= self.log.begin and self.quarantine.covers(log_offset, size):
            return True
        return self._is_right(queue, offset)

    def _is_right(self, queue: ConsumeQueue, offset: int) -> bool:
        """Whether the entry and the record that it means are both as they should be."""
        log_offset, size, code = queue.entry(offset)
        data = self.log.read_if_there(log_offset, size)
        return data is not None and is_proven(data, queue, offset, (log_offset, size, code))

    async def mend(self, queue: ConsumeQueue, broken: int) -> None:
        """Ask the log what entry `broken` and its broken neighbours should be, and write them. Raises OSError."""
        first, entries, damages = await self.cold.read(lambda: self._tell_again(queue, broken))
        try:
            for damage in damages:
                await self.cold.read(partial(self.quarantine.put_aside, self.log.files, damage))
        except SyncError as error:
            self.fence(error)
            raise
        if entries != await self.cold.read(lambda: queue.read(first, len(entries) // CQ_ENTRY.size)):
            log.error("%s: entries from %d on are not what the log says; they are now", queue, first)
            try:
                queue.mend(first, entries)
            except OSError as error:
                log.error("%s: the mended entries could not be written: %s", queue, error)  # noqa: TRY400

    def _tell_again(self, queue: ConsumeQueue, broken: int) -> tuple[int, bytes, list[Damage]]:
        first, begin = broken, self.log.begin
        while first > queue.first_offset and broken - first < NEIGHBOURS_MAX:
            log_offset, size, _ = queue.entry(first - 1)
            if self._is_right(queue, first - 1):
                begin = log_offset + size
                break
            if size > 0 and log_offset < self.log.begin:
                break  # deleted, as it looks: the log begins behind it
            first -= 1
        last, end = broken, self.log.end
        while last + 1 < queue.max_offset and last - broken < NEIGHBOURS_MAX:
            log_offset, size, _ = queue.entry(last + 1)
            if self._is_right(queue, last + 1):
                end = log_offset
                break
            last += 1
        return first, *self._entries_between(queue, first, last, begin, end)

    def _entries_between(
        self, queue: ConsumeQueue, first: int, last: int, begin: int, end: int
    ) -> tuple[bytes, list[Damage]]:
        """The entries `first` to `last` of the queue, as the log from `begin` to `end` has them."""
        found: dict[int, bytes] = {}
        damages: list[Damage] = []
        fillers: dict[int, bytes] = {}
        following = first
        for one in scan_log(self.log.files, begin, end):
            if isinstance(one, Damage):
                damages.append(one)
                fillers[following] = filler(one)
            elif isinstance(one, Record) and (one.topic, one.queue_id) == (queue.topic, queue.queue_id):
                found[one.queue_offset] = CQ_ENTRY.pack(one.log_offset, one.size, entry_tags_code(one))
                following = one.queue_offset + 1
        entries, lost = [], None
        for offset in range(first, last + 1):
            lost = fillers.get(offset, lost)
            entry = found.get(offset, lost)
            if entry is None:
                raise NotInLogError(f"the log has no message {offset} of {queue} between {begin} and {end}")
            entries.append(entry)
        return b"".join(entries), damages


def filler(damage: Damage) -> bytes:
    """The entry of a message that was lost to this damage."""
    return CQ_ENTRY.pack(damage.log_offset, min(damage.size, ENTRY_SIZE_MAX - 1), 0)
