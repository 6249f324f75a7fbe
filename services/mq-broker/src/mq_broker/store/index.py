"""The index: where the messages with a key are. It follows the log, and tells nothing that the log could not.

Invariants: every key of every record below `indexed_end` that is still in the log is in one of the files (twice, if a
disk that refused something was asked again); files are in the order of the log, and only the last one is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from mq_broker.core.index_keys import IndexKey, index_hash, index_keys, record_index_keys
from mq_broker.store.commit_log import CommitLog
from mq_broker.store.index_file import IndexFile, IndexSize
from mq_broker.store.log_scan import scan_log
from mqproto.record import Record
from osenv import Clock, Disk

log = logging.getLogger(__name__)

NAME_DIGITS = 17  # yyyyMMddHHmmssSSS
# Indexed at a time, after which others have their turn. A step ends with the record that reaches either number: records
# of earlier versions may have 16,000 keys.
STEP_RECORDS, STEP_KEYS = 256, 1_024
COLD_STEP_RECORDS, COLD_STEP_KEYS = 4_096, 8_192  # the same from disk, read in a thread
RETRY_AFTER_ERROR_S = 10


@dataclass(frozen=True, slots=True)
class IndexPoint:
    """How much of the index is durable: the file that is written (0: none yet), its next entry, the log below it."""

    file_name: int = 0
    next_number: int = 1
    log_offset: int = 0
    file_count: int = 0


class Index:
    """All index files of a store."""

    def __init__(self, disk: Disk, clock: Clock, folder: Path, size: IndexSize, commit_log: CommitLog) -> None:
        self._disk, self._clock, self._folder, self._size, self._log = disk, clock, folder, size, commit_log
        self._files: list[IndexFile] = []
        self._unsaved: list[IndexFile] = []
        self._appended = asyncio.Event()
        self._unsynced_folders: list[Path] = []
        self._stepping = asyncio.Lock()
        self.indexed_end = 0

    # ------------------------------------------------------------------------------------------------ life

    def open(self, point: IndexPoint | None, *, clean: bool) -> None:
        """Take over the files up to `point`; what is missing is told by the log later, in `run`. Raises OSError.

        Without a point, or when the files do not fit it, the index begins anew.
        """
        names = [name for name in self._disk.list_dir(self._folder) if name.isdigit() and len(name) == NAME_DIGITS]
        try:
            self._take_over(names, point, clean=clean)
        except ValueError as error:
            if names:
                log.warning("the index is built anew: %s", error)
            self.close()
            for name in names:
                if self._disk.exists(self._folder / name):
                    self._disk.unlink(self._folder / name)
            self.indexed_end = self._log.begin
        self._unsynced_folders = [self._folder] if names else []
        self._appended.set()

    def _take_over(self, names: Sequence[str], point: IndexPoint | None, *, clean: bool) -> None:
        if point is None or not self._log.begin <= point.log_offset <= self._log.end:
            raise ValueError("the checkpoint does not say how far the index is")
        if point.file_name and f"{point.file_name:0{NAME_DIGITS}d}" not in names:
            raise ValueError(f"the file {point.file_name} is missing")
        for name in names:
            if int(name) > point.file_name:  # not durable; the log tells it again
                self._disk.unlink(self._folder / name)
            else:
                self._files.append(IndexFile(self._disk, self._folder / name, self._size))
        if any(not file.is_full for file in self._files[:-1]) or len(self._files) != point.file_count:
            raise ValueError(f"there are {len(self._files)} files; there were {point.file_count}, all but one full")
        if self._files and not clean:
            self._files[-1].recover(point.next_number)
            self._unsaved.append(self._files[-1])
        if self._files and self._files[-1].head.next_number != point.next_number:
            raise ValueError(f"{self._files[-1].path} does not end at entry {point.next_number}")
        self.indexed_end = max(point.log_offset, self._log.begin)

    async def run(self) -> None:
        """Follow the log for ever. A disk that refuses something is asked again; nothing is left out."""
        while True:
            await self._appended.wait()
            self._appended.clear()
            try:
                while self.indexed_end < self._log.end:
                    await self._step()
            except (OSError, ValueError) as error:
                log.warning("the index stays behind at offset %d: %s", self.indexed_end, error)
                await self._clock.sleep(RETRY_AFTER_ERROR_S)
                self._appended.set()

    def appended(self) -> None:
        """There is something new in the log."""
        self._appended.set()

    def close(self) -> None:
        """Give the files back."""
        for file in self._files:
            file.close()
        self._files.clear()
        self._unsaved.clear()

    # ----------------------------------------------------------------------------------------------- write

    @property
    def point(self) -> IndexPoint:
        """How far the index is; durable after `take_save`'s call, if both are taken at the same moment."""
        if not self._files:
            return IndexPoint(log_offset=self.indexed_end)
        newest = self._files[-1]
        return IndexPoint(int(newest.path.name), newest.head.next_number, self.indexed_end, len(self._files))

    @property
    def full_end_ms(self) -> int:
        """Store timestamp of the newest message in a full file; 0 without one."""
        return max((file.head.end_ms for file in self._files if file.is_full), default=0)

    async def catch_up(self) -> bool:
        """Index what is still in memory; whether nothing is left then. Raises OSError."""
        while self.indexed_end < self._log.end and self._log.is_hot_from(self.indexed_end):
            await self._step()
        return self.indexed_end == self._log.end

    def take_save(self) -> Callable[[], None]:
        """The call that makes the index as it is now durable; see `IndexFile.take_save`."""
        saves = [file.take_save() for file in self._unsaved]
        folders, unsaved = self._unsynced_folders[:], self._unsaved[:]

        def save() -> None:
            for one in saves:
                one()
            for folder in folders:
                self._disk.sync_dir(folder)
            del self._unsynced_folders[: len(folders)]
            for file in unsaved:
                if file.is_saved:
                    self._unsaved.remove(file)
                    if file.is_full:
                        file.release_slots()

        return save

    async def _step(self) -> None:
        """Index some more records. One at a time: `run` and `catch_up` may be at work together."""
        async with self._stepping:
            await self._index_some()

    async def _index_some(self) -> None:
        at = self.indexed_end
        chunk = self._log.hot_chunk(at)
        if chunk is not None:
            keys, size = index_keys(*chunk, at, records_max=STEP_RECORDS, keys_max=STEP_KEYS)
            await self._add(keys)
            self.indexed_end = at + size
            await asyncio.sleep(0)
        else:
            keys, end = await self._disk.offload(self._read_cold, at, self._log.end)
            await self._add(keys)
            self.indexed_end = max(end, self._log.begin)

    def _read_cold(self, start: int, end: int) -> tuple[list[IndexKey], int]:
        keys: list[IndexKey] = []
        at = max(start, self._log.begin)
        for found in islice(scan_log(self._log.files, at, end), COLD_STEP_RECORDS):
            if isinstance(found, Record):
                keys += record_index_keys(found)
            at = found.log_offset + found.size
            if len(keys) >= COLD_STEP_KEYS:
                break
        return keys, at

    async def _add(self, keys: Sequence[IndexKey]) -> None:
        while keys:
            if not self._files or self._files[-1].is_full:
                self._files.append(await self._disk.offload(self._create, keys[0][2]))
                self._unsaved.append(self._files[-1])
            file = self._files[-1]
            if not file.has_slots:
                await self._disk.offload(file.load_slots)
            fit = keys[: file.room]
            file.add(fit)
            if file not in self._unsaved:
                self._unsaved.append(file)
            keys = keys[len(fit) :]

    def _create(self, store_ms: int) -> IndexFile:
        """A new file, named after the time of its first message; may block."""
        self._disk.make_dirs(self._folder)
        self._unsynced_folders += [self._folder, self._folder.parent]
        name = int(datetime.fromtimestamp(store_ms / 1_000, UTC).strftime("%Y%m%d%H%M%S%f")[:NAME_DIGITS])
        if self._files:
            name = max(name, int(self._files[-1].path.name) + 1)
        return IndexFile(self._disk, self._folder / f"{name:0{NAME_DIGITS}d}", self._size, create=True)

    # ------------------------------------------------------------------------------------- find and forget

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        """Log offsets that may hold messages with this key, newest first; the record itself decides. May block.

        None for each entry that was visited in vain.
        """
        key_hash = index_hash(topic, key)
        for file in reversed(self._files[:]):
            if file.head.end_ms >= begin_ms and file.head.begin_ms <= end_ms:
                yield from file.find(key_hash, begin_ms, end_ms)

    async def forget_below(self, log_offset: int) -> AsyncIterator[IndexFile]:
        """Remove the files that speak only of what lies below `log_offset`; each is to be closed when nobody reads it.

        Raises OSError.
        """
        while len(self._files) > 1 and self._files[0].head.end_offset < log_offset:
            await self._disk.offload(self._disk.unlink, self._files[0].path)
            file = self._files.pop(0)
            if file in self._unsaved:
                self._unsaved.remove(file)
            self._unsynced_folders.append(self._folder)
            yield file
