"""Reading the store: what consumers, tools and the broker's own services get back.

What comes from memory was written by this process. What comes from disk is believed only when it proves itself: CRC,
place, topic, queue and queue offset. A record that does not is looked for in the log around it: a wrong consume-queue
entry is mended, a damaged record goes into quarantine and is left out (RELIABILITY.md (a), bit flips).

Invariants: nobody gets a record that is not exactly what was stored under that queue offset; nothing beyond
`readable_end` is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.pulling import SCAN_ENTRIES_MAX, Selection, select
from mq_broker.core.tag_filter import EVERYTHING, TagFilter
from mq_broker.store.cold_reads import ColdReads
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.consume_queue import ENTRY_SIZE_MAX, ConsumeQueue
from mq_broker.store.mending import Mender
from mq_broker.store.proof import all_proven, is_proven
from mq_broker.store.quarantine import Quarantine
from mqproto.record import (
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    SEGMENT_HEAD,
    Record,
    RecordError,
    decode_record,
    is_sealed,
    iter_records,
)


@dataclass
class Reader:
    """Reads queues and single records. Called from the event loop; what blocks runs in threads."""

    log: CommitLog
    quarantine: Quarantine
    mender: Mender
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
            if record is None and offsets[index] >= queue.min_offset:  # an entry to be mended, or a record that is lost
                mended, _ = await self.read_queue(queue, offsets[index], 1)
                records[index] = mended[0] if mended and mended[0].queue_offset == offsets[index] else None
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
        """One record after the other, mending what is broken and leaving out what is lost."""
        chosen, parts, taken = Selection(), list[bytes](), 0
        end = min(queue.max_offset, offset + _scan_count(tags, max_messages))
        mended = set[int]()
        while (at := offset + chosen.scanned) < end and chosen.count < max_messages:
            log_offset, size, code = queue.entry(at)
            if self.quarantine.covers(log_offset, size):
                chosen.scanned += 1
                continue
            data = await self.cold.read(partial(self.log.read_if_there, log_offset, size))
            if data is None or not is_proven(data, queue, at, (log_offset, size, code)):
                if at in mended:
                    raise OSError(f"message {at} of {queue} can neither be read nor mended")
                mended.add(at)
                await self.mender.mend(queue, at)
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
        if data is None or not is_proven(data, queue, offset, (log_offset, size, code)):
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
