"""Reads of the store for consumers, tools and the broker's own services, and repairs of what is damaged."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.pulling import EVERYTHING, SCAN_ENTRIES_MAX, Selection, TagFilter, select, tag_hash
from mq_broker.core.rewrite import entry_tags_code
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ENTRY_SIZE_MAX, ConsumeQueue
from mq_broker.store.log_scan import ColdReads, Damage, Quarantine, scan_log
from mqproto.record import (
    BODY_AT,
    CRC_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    crc_property,
    decode_record,
    is_sealed,
    iter_records,
)
from osenv import SyncError

log = logging.getLogger(__name__)


@dataclass
class Reader:
    """Reads queues and single records. Called from the event loop; what blocks runs in threads.

    What comes from memory was written by this process. What comes from disk is believed only when it proves itself:
    CRC, place, topic, queue and queue offset. A record that does not is looked for in the log around it: a wrong
    consume-queue entry is repaired, a damaged record goes into quarantine and is left out
    (docs/reference/faults.md#store, bit flips).

    Invariants: a record that is returned is exactly what was stored under that queue offset; nothing beyond
    `readable_end` is read.
    """

    log: CommitLog
    quarantine: Quarantine
    repairer: QueueRepairer
    cold: ColdReads
    readable_end: Callable[[], int]

    # --------------------------------------------------------------------------------------------- queues

    def select_hot(
        self, queue: ConsumeQueue, offset: int, tags: TagFilter, *, max_messages: int, max_bytes: int
    ) -> tuple[Selection, bytes] | None:
        """The records wanted from `offset` on when all of it is in memory, else None (then `select_cold`)."""
        entries = queue.read_hot(offset, _scan_count(tags, max_messages))
        if entries is None:
            return None
        chosen = self._select(entries, tags, max_messages, max_bytes)
        parts = []
        for log_offset, size in chosen.ranges:
            part = self.log.read_hot(log_offset, size)
            if part is None:
                return None
            parts.append(part)
        return chosen, parts[0] if len(parts) == 1 else b"".join(parts)

    async def select_cold(
        self, queue: ConsumeQueue, offset: int, tags: TagFilter, client: str = "", *, max_messages: int, max_bytes: int
    ) -> tuple[Selection, bytes]:
        """The same from disk, away from the event loop, when it is the client's turn. Raises OSError."""

        def read() -> tuple[Selection, bytes] | None:
            entries = queue.read(offset, _scan_count(tags, max_messages))
            # Also what the filter passes over: a damaged hash must not hide a message.
            scanned = self._select(entries, EVERYTHING, ENTRY_SIZE_MAX, max_bytes)
            chosen = scanned
            if tags.codes is not None:
                chosen = self._select(entries[: scanned.scanned * CQ_ENTRY.size], tags, max_messages, max_bytes)
            if any(at < self.log.begin or at + size > self.log.end for at, size in scanned.ranges):
                return None
            data = b"".join([self.log.read(at, size) for at, size in scanned.ranges])
            entries = entries[: chosen.scanned * CQ_ENTRY.size]
            if not chosen.scanned or not all_proven(queue, offset, entries, data):
                return None
            return chosen, data if tags.codes is None else _wanted(entries, tags, data)

        found = await self.cold.read(read, client)
        return found or await self._select_carefully(queue, offset, tags, max_messages, max_bytes)

    async def read_queue(
        self, queue: ConsumeQueue, offset: int, count: int, bytes_max: int = ENTRY_SIZE_MAX
    ) -> tuple[list[Record], int]:
        """Readable records from `offset` on, and how many entries they and lost ones take.

        At most `count` of them, and `bytes_max` bytes, but one if there is one. Raises OSError.
        """
        limits = {"max_messages": count, "max_bytes": bytes_max}
        found = self.select_hot(queue, offset, EVERYTHING, **limits)
        chosen, data = found or await self.select_cold(queue, offset, EVERYTHING, "", **limits)
        return list(iter_records(data)), chosen.scanned

    async def read_scattered(
        self, queue: ConsumeQueue, offsets: Sequence[int], bytes_max: int
    ) -> tuple[list[Record], int]:
        """The records at these readable offsets of the queue, without lost ones, and how many offsets were looked at.

        In their order, until they take `bytes_max` bytes or more; the first one whatever its size. Raises OSError.
        """
        found: list[Record] = []
        looked_at = taken = 0
        for offset in offsets:
            entry = queue.read_hot(offset, 1)
            data = self.log.read_hot(*CQ_ENTRY.unpack(entry)[:2]) if entry else None
            if data is None:
                break
            found.append(decode_record(data))
            taken += len(data)
            looked_at += 1
            if taken >= bytes_max:
                return found, looked_at
        if looked_at < len(offsets):
            cold, cold_looked_at = await self._read_scattered_cold(queue, offsets[looked_at:], bytes_max - taken)
            found += cold
            looked_at += cold_looked_at
        return found, looked_at

    async def _read_scattered_cold(
        self, queue: ConsumeQueue, offsets: Sequence[int], bytes_max: int
    ) -> tuple[list[Record], int]:
        def read() -> list[Record | None]:
            found: list[Record | None] = []
            taken = 0
            for offset in offsets:
                found.append(record := self._message_if_there(queue, offset))
                taken += record.size if record else 0
                if taken >= bytes_max:
                    break
            return found

        records = await self.cold.read(read)
        for index, record in enumerate(records):
            if (
                record is None and offsets[index] >= queue.min_offset
            ):  # an entry to be repaired, or a record that is lost
                repaired, _ = await self.read_queue(queue, offsets[index], 1)
                records[index] = repaired[0] if repaired and repaired[0].queue_offset == offsets[index] else None
        return [record for record in records if record is not None], len(records)

    def _message_if_there(self, queue: ConsumeQueue, offset: int) -> Record | None:
        """As `message`; None also when the file of the record goes at this moment."""
        try:
            return self.message(queue, offset)
        except ValueError:
            return None

    async def _select_carefully(
        self, queue: ConsumeQueue, offset: int, tags: TagFilter, max_messages: int, max_bytes: int
    ) -> tuple[Selection, bytes]:
        """One record after the other, repairing what is broken and leaving out what is lost."""
        chosen, parts, taken = Selection(), list[bytes](), 0
        end = min(queue.max_offset, offset + _scan_count(tags, max_messages))
        repaired = set[int]()
        while (at := offset + chosen.scanned) < end and chosen.count < max_messages:
            log_offset, size, code = queue.entry(at)
            if self.quarantine.covers(log_offset, size):
                chosen.scanned += 1
                continue
            data = await self.cold.read(partial(self.log.read_if_there, log_offset, size))
            if data is None or not is_valid_entry(data, queue, at, (log_offset, size, code)):
                if at in repaired:
                    raise OSError(f"message {at} of {queue} can neither be read nor repaired")
                repaired.add(at)
                await self.repairer.repair(queue, at)
                continue
            if log_offset + size > self.readable_end():
                break
            if tags.passes(code):
                if chosen.count and taken + size > max_bytes:
                    break
                parts.append(data)
                chosen.count += 1
                taken += size
            chosen.scanned += 1
        return chosen, b"".join(parts)

    # ------------------------------------------------------------------------------------- single records

    async def read_record(self, log_offset: int) -> Record:
        """The record at this place. Raises ValueError (RecordError) when there is none, OSError."""
        return (await self.read_whole(log_offset))[0]

    async def read_whole(self, log_offset: int) -> tuple[Record, bytes]:
        """The record at this place, and its bytes. Raises ValueError (RecordError) when there is none, OSError."""
        end = self.log.end
        if not self.log.begin <= log_offset <= end - SEGMENT_HEAD.size:
            raise ValueError(f"offset {log_offset} is not in the log, which runs from {self.log.begin} to {end}")
        head = self.log.read_hot(log_offset, SEGMENT_HEAD.size)
        if head is None:
            head = await self.cold.read(lambda: self.log.read(log_offset, SEGMENT_HEAD.size))
        size, magic = SEGMENT_HEAD.unpack(head)
        if magic != MESSAGE_MAGIC or not RECORD_BYTES_MIN <= size <= end - log_offset:
            raise ValueError(f"no record begins at offset {log_offset}")
        data = self.log.read_hot(log_offset, size)
        if data is None:
            data = await self.cold.read(lambda: self.log.read(log_offset, size))
            if not is_sealed(data, 0, size):
                raise RecordError(f"the record at offset {log_offset} is damaged: CRC mismatch")
        record = decode_record(data)
        if record.log_offset != log_offset:
            raise ValueError(f"no record begins at offset {log_offset}")
        return record, data

    def read_proven(self, log_offset: int) -> tuple[Record, bytes] | None:
        """The record at this place with its bytes, or None when none stands there whole; may block on the disk."""
        head = self.log.read_if_there(log_offset, SEGMENT_HEAD.size)
        size = SEGMENT_HEAD.unpack(head)[0] if head is not None else 0
        data = self.log.read_if_there(log_offset, size) if size >= RECORD_BYTES_MIN else None
        if data is None or not is_sealed(data, 0, size):
            return None
        try:
            record = decode_record(data)
        except RecordError:
            return None
        return (record, data) if record.log_offset == log_offset else None

    def message(self, queue: ConsumeQueue, offset: int) -> Record | None:
        """The message at `offset` of the queue, or None when it is lost or its entry damaged; may block on the disk."""
        log_offset, size, code = queue.entry(offset)
        data = self.log.read_if_there(log_offset, size)
        if data is None or not is_valid_entry(data, queue, offset, (log_offset, size, code)):
            return None
        return decode_record(data)

    # ------------------------------------------------------------------------------------------- plumbing

    def _select(self, entries: bytes, tags: TagFilter, max_messages: int, max_bytes: int) -> Selection:
        return select(entries, tags, max_messages=max_messages, max_bytes=max_bytes, readable_end=self.readable_end())


def _scan_count(tags: TagFilter, max_messages: int) -> int:
    return max_messages if tags.codes is None else SCAN_ENTRIES_MAX


def _wanted(entries: bytes, tags: TagFilter, data: bytes) -> bytes:
    """Of the records that lie end to end in `data`, those that pass."""
    at, parts = 0, []
    for _, size, code in CQ_ENTRY.iter_unpack(entries):
        if tags.passes(code):
            parts.append(data[at : at + size])
        at += size
    return b"".join(parts)


NEIGHBOURS_MAX = 1_024  # entries looked at around a broken one for those that are right


class NotInLogError(OSError):
    """A consume queue speaks of a message that the log does not have."""


@dataclass
class QueueRepairer:
    """A consume-queue entry that is wrong, and a record that is damaged: the log around them tells what is so.

    Puts queues in order. `fence` is told of a sync that has failed.

    Invariants: an entry is replaced only by what whole records of the log say, or by the stretch of damage in which its
    message was lost; what is found damaged is in quarantine before anything points to it.
    """

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
                await self.repair(queue, first - 1)
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
                begin, entries, damages = self._rebuild_entries(queue, first - 1)
            except NotInLogError:
                break
            for damage in damages:
                self.quarantine.put_aside(self.log.files, damage)
            queue.repair(begin, entries)
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
        return data is not None and is_valid_entry(data, queue, offset, (log_offset, size, code))

    async def repair(self, queue: ConsumeQueue, broken: int) -> None:
        """Ask the log what entry `broken` and its broken neighbours should be, and write them. Raises OSError."""
        first, entries, damages = await self.cold.read(lambda: self._rebuild_entries(queue, broken))
        try:
            for damage in damages:
                await self.cold.read(partial(self.quarantine.put_aside, self.log.files, damage))
        except SyncError as error:
            self.fence(error)
            raise
        if entries != await self.cold.read(lambda: queue.read(first, len(entries) // CQ_ENTRY.size)):
            log.error("%s: repaired consume-queue entries from %d", queue, first)
            try:
                queue.repair(first, entries)
            except OSError as error:
                log.error("%s: the repaired entries could not be written: %s", queue, error)  # noqa: TRY400

    def _rebuild_entries(self, queue: ConsumeQueue, broken: int) -> tuple[int, bytes, list[Damage]]:
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


# What a record from disk has to prove before it is handed on. What is proven, `decode_record` can read.

Entry = tuple[int, int, int]  # log offset, size, tag hash

_LENGTH_BYTES = 2  # of the properties
# size, magic, queue id, queue offset, physical offset, sysflag, body size
_PLACED_HEAD = Struct(">ii4xi4xqqi44xi")
_SYS_FLAGS_REJECTED = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6


def is_valid_entry(data: bytes, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> bool:
    """Whether a whole record stands at the beginning of `data`, the one that the entry means, with the entry's hash."""
    return all_proven(queue, queue_offset, CQ_ENTRY.pack(*entry), data)


def all_proven(queue: ConsumeQueue, queue_offset: int, entries: bytes, data: bytes) -> bool:
    """Whether every record proves itself, as they lie end to end in `data`, and so does its entry."""
    at, end, view = 0, len(data), memoryview(data)
    topic_field, topic_bytes = queue.topic_field, len(queue.topic_field)
    for log_offset, size, code in CQ_ENTRY.iter_unpack(entries):
        next_at = at + size
        if size < RECORD_BYTES_MIN or next_at > end:
            return False
        found_size, magic, queue_id, found_offset, place, sys_flag, body_size = _PLACED_HEAD.unpack_from(data, at)
        topic_at, sealed_end = at + BODY_AT + body_size, next_at - CRC_BYTES
        topic_end = topic_at + topic_bytes
        properties_at = topic_end + _LENGTH_BYTES
        if (
            found_size != size
            or magic != MESSAGE_MAGIC
            or queue_id != queue.queue_id
            or found_offset != queue_offset
            or place != log_offset
            or sys_flag & _SYS_FLAGS_REJECTED
            or body_size < 0
            or data[topic_at:topic_end] != topic_field
            or data[sealed_end:next_at] != crc_property(zlib.crc32(view[at:sealed_end]))
            or properties_at > sealed_end
            or data[topic_end] << 8 | data[topic_end + 1] != next_at - properties_at
            or not (queue.keeps_due_times or code == tag_hash(data, properties_at, next_at))
        ):
            return False
        at = next_at
        queue_offset += 1
    return True
