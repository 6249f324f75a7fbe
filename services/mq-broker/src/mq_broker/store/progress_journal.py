"""The journal of consumers' progress: what has changed since consumerOffset.json was written (mechanisms C21, C22)."""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import NamedTuple

from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress, Range
from mq_broker.store.durability import finish_despite_cancellation
from osenv import Clock, Disk, DiskFile, SyncError
from osenv.disk import read_file

log = logging.getLogger(__name__)

FILE_PREFIX = "consumerOffset.journal."
NUMBER_DIGITS = 10
PACE_S = 0.05  # between two writes
RETRY_S = 5  # after a rejection; meanwhile the document is written as ever


def journal_number(name: str) -> int | None:
    """The number of the journal's file with this name; None when it is none."""
    number = name.removeprefix(FILE_PREFIX)
    return int(number) if number != name and len(number) == NUMBER_DIGITS and number.isdecimal() else None


class ProgressJournal:
    """One broker's journal. Single writer, on one event loop.

    Writing the document takes as long as there are groups; an entry is written in one go. So what consumers report is
    durable a moment later, not after the next document.

    Invariants: a change is in the journal before it is in a document, unless the disk has rejected that; an entry stays
    until the document and the one before it have it, so that either one and the journal together know everything. A
    file is only ever appended to, by the life of the broker that made it; after an error, and once a document is
    written, the next entry begins a new one.
    """

    def __init__(self, disk: Disk, clock: Clock, folder: Path, offsets: ConsumerOffsets) -> None:
        self._disk, self._clock, self._folder, self._offsets = disk, clock, folder, offsets
        self._changed: dict[tuple[str, str, int], None] = {}  # since the last write, in order
        self._change = asyncio.Event()
        self._writing = asyncio.Lock()
        self._newest: dict[int, int] = {}  # the largest data version by number of the file, oldest first
        self._number = 0  # of the newest file that ever was
        self._file: DiskFile | None = None
        self._size = 0
        offsets.on_change(self._on_change)

    def replay(self, covered: int | None) -> None:
        """Take over what is newer than data version `covered`, which a document has; None: nothing. Raises OSError."""
        numbers = map(journal_number, self._disk.list_dir(self._folder))
        for number in sorted(number for number in numbers if number is not None):
            path = self._path(number)
            found = scan(read_file(self._disk, path))
            for at, size in found.damages:
                log.error("%s: %d bytes at %d are no entry; what follows is used", path, size, at)
            if found.torn:  # the bytes do not tell which of the two it is
                log.warning("%s: the last write was cut short, or is damaged: %d bytes are no entry", path, found.torn)
            self._number = number
            self._newest[number] = max((entry.data_version for entry in found.entries), default=0)
            for entry in found.entries:
                if covered is not None and entry.data_version > covered:
                    self._offsets.restore(entry.group, entry.topic, entry.queue_id, entry.progress)
        # Also when nothing is taken over: what comes from now on must be newer than any of it.
        self._offsets.data_version = max([self._offsets.data_version, *self._newest.values()])

    async def run(self) -> None:
        """Write what changes, for ever. Raises SyncError."""
        while True:
            await self._change.wait()
            await self._clock.sleep(PACE_S if await self.flush() else RETRY_S)

    async def flush(self) -> bool:
        """Have everything that has changed so far on disk, on return; False when the disk has could not write it.

        Raises SyncError.
        """
        return await finish_despite_cancellation(self._flush())

    async def documented(self, covered: int) -> None:
        """A document is on disk, and so is the one before it: together they have everything up to `covered`."""
        async with self._writing:
            self._end_file()
            await self._disk.offload(self._drop, covered)

    def close(self) -> None:
        """Give the file back."""
        self._end_file()

    def _on_change(self, group: str, topic: str, queue_id: int) -> None:
        self._changed[group, topic, queue_id] = None
        self._change.set()

    async def _flush(self) -> bool:
        async with self._writing:
            places, self._changed = self._changed, {}
            self._change.clear()
            if not places:
                return True
            version = self._offsets.data_version
            entries = [Entry(version, *place, self._offsets.progress(*place)) for place in places]
            try:
                await self._disk.offload(self._append, entries)
            except OSError as error:
                self._end_file()  # its content is in doubt: it is neither written nor synced again
                self._changed = places | self._changed
                self._change.set()
                if isinstance(error, SyncError):
                    raise
                log.warning("the journal of progress could not be written: %s; the document will be", error)
                return False
            return True

    def _append(self, entries: Sequence[Entry]) -> None:
        data = b"".join(map(encode_entry, entries))
        is_new = self._file is None
        if self._file is None:
            self._number += 1
            self._file, self._size = self._disk.open(self._path(self._number), create=True), 0
        self._newest[self._number] = entries[-1].data_version
        self._file.pwrite(data, self._size)
        self._file.sync_data()
        if is_new:
            self._disk.sync_dir(self._folder)
        self._size += len(data)

    def _end_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _drop(self, covered: int) -> None:
        for number in [number for number, newest in self._newest.items() if newest <= covered]:
            try:
                self._disk.unlink(self._path(number))
            except OSError as error:
                log.warning("%s could not be deleted: %s", self._path(number), error)
                return
            del self._newest[number]

    def _path(self, number: int) -> Path:
        return self._folder / f"{FILE_PREFIX}{number:0{NUMBER_DIGITS}d}"


MAGIC = b"HPRG"
_HEAD = Struct(">4sI")  # magic, CRC of what follows
_BODY = Struct(">IqiqqIII")  # size, data version, queue id, offset, version, ranges, bytes of topic and group
_RANGE = Struct(">qq")
_FIXED_BYTES = _HEAD.size + _BODY.size
_NO_OFFSET = -1  # stands for: the group has no offset there any more


class Entry(NamedTuple):
    """The entries of the journal of consumers' progress, as bytes (FORMAT.md, "Journal of progress").

    At this data version the group had come so far; `progress` is None when it has no offset any more.

    Invariant: what `scan` gives is what was encoded: an entry whose CRC does not match is none.
    """

    data_version: int
    group: str
    topic: str
    queue_id: int
    progress: Progress | None


@dataclass(slots=True)
class Scan:
    """What stands in a journal's file; `damages` are stretches (at, size) before whole entries, `torn` bytes behind."""

    entries: list[Entry] = field(default_factory=list)
    damages: list[tuple[int, int]] = field(default_factory=list)
    torn: int = 0


def encode_entry(entry: Entry) -> bytes:
    """The entry's bytes."""
    topic, group = entry.topic.encode(), entry.group.encode()
    offset, ranges, version = _NO_OFFSET, tuple[Range, ...](), 0
    if entry.progress is not None:
        offset, ranges, version = entry.progress.offset, entry.progress.ranges, entry.progress.version
    size = _FIXED_BYTES + len(topic) + len(group) + len(ranges) * _RANGE.size
    body = b"".join(
        [
            _BODY.pack(size, entry.data_version, entry.queue_id, offset, version, len(ranges), len(topic), len(group)),
            topic,
            group,
            *(_RANGE.pack(*one) for one in ranges),
        ]
    )
    return _HEAD.pack(MAGIC, zlib.crc32(body)) + body


def scan(data: bytes) -> Scan:
    """Every whole entry, in order, and what is none."""
    found, at, end = Scan(), 0, 0  # everything before `end` is accounted for
    while (at := data.find(MAGIC, at)) >= 0:
        decoded = _decode(data, at)
        if decoded is None:
            at += 1
            continue
        if at > end:
            found.damages.append((end, at - end))
        entry, size = decoded
        found.entries.append(entry)
        at = end = at + size
    found.torn = len(data) - end
    return found


def _decode(data: bytes, at: int) -> tuple[Entry, int] | None:
    """The entry that begins there, and its size; None when there is no whole one."""
    if at + _FIXED_BYTES > len(data):
        return None
    _, crc = _HEAD.unpack_from(data, at)
    body_at = at + _HEAD.size
    size, data_version, queue_id, offset, version, count, topic_bytes, group_bytes = _BODY.unpack_from(data, body_at)
    topic_at = at + _FIXED_BYTES
    group_at = topic_at + topic_bytes
    ranges_at = group_at + group_bytes
    end = at + size
    if end > len(data) or ranges_at + count * _RANGE.size != end or zlib.crc32(data[body_at:end]) != crc:
        return None
    try:
        topic, group = data[topic_at:group_at].decode(), data[group_at:ranges_at].decode()
        progress = None
        if offset != _NO_OFFSET:
            progress = Progress(offset, tuple(_RANGE.iter_unpack(data[ranges_at:end])), version)
            progress.check()
    except ValueError:
        return None
    return Entry(data_version, group, topic, queue_id, progress), size
