"""A run of files of one size, each named after the offset of its first byte in 20 digits (MISSION S2).

Invariants: files follow each other without a gap; every file has its full length from the moment it exists; an access
lies within the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from osenv import Disk, DiskFile

NAME_DIGITS = 20


class SegmentFiles:
    """Byte offsets onto files. Without `ahead_bytes` a new file gets all its blocks, else only so many at a time."""

    def __init__(self, disk: Disk, folder: Path, file_bytes: int, *, ahead_bytes: int | None = None) -> None:
        self._disk, self._folder, self._file_bytes, self._ahead_bytes = disk, folder, file_bytes, ahead_bytes
        self._files: dict[int, DiskFile] = {}
        self._allocated_to = 0
        self._dirty: set[int] = set()
        self._names_dirty = False
        for name in disk.list_dir(folder):
            if name.isdigit() and len(name) == NAME_DIGITS:
                self._files[int(name)] = disk.open(folder / name)
        self._starts = sorted(self._files)
        for before, after in zip(self._starts, self._starts[1:], strict=False):
            if after - before != file_bytes:
                raise ValueError(
                    f"{folder}: the file after {before:020d} is {after:020d}; files have {file_bytes} bytes"
                )
        for start in self._starts:
            if self._files[start].size() != file_bytes:  # a crash came between creating the file and its length
                self._give_length(self._files[start])

    @property
    def begin(self) -> int:
        """Offset of the first byte of the first file; 0 without files."""
        return self._starts[0] if self._starts else 0

    @property
    def capacity_end(self) -> int:
        """Offset behind the last file."""
        return self._starts[-1] + self._file_bytes if self._starts else 0

    def room(self, offset: int) -> int:
        """Bytes from `offset` to the end of its file."""
        return self._file_bytes - offset % self._file_bytes

    def ensure(self, offset: int) -> None:
        """Have the file that contains `offset`, which is the one behind the last at the most. Raises OSError."""
        start = offset - offset % self._file_bytes
        if start in self._files:
            return
        self._disk.make_dirs(self._folder)
        path = self._folder / f"{start:0{NAME_DIGITS}d}"
        file = self._disk.open(path, create=True)
        try:
            self._give_length(file)
        except OSError:
            file.close()
            self._disk.unlink(path)
            raise
        self._files[start] = file
        self._starts.append(start)
        self._dirty.add(start)
        self._names_dirty = True

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write `data`, across files if need be, creating them. Raises OSError; any part may have been written then."""
        self.reserve(offset, offset + len(data))
        at, view = 0, memoryview(data)
        while at < len(data):
            count = min(len(data) - at, self.room(offset + at))
            self.ensure(offset + at)
            start = (offset + at) // self._file_bytes * self._file_bytes
            self._files[start].pwrite(view[at : at + count], offset + at - start)
            self._dirty.add(start)
            at += count

    def read(self, length: int, offset: int) -> bytes:
        """Exactly `length` bytes, across files if need be. Raises ValueError outside the run."""
        parts = []
        while length > 0:
            start = offset // self._file_bytes * self._file_bytes
            file = self._files.get(start)
            if file is None:
                raise ValueError(f"{self._folder}: no file holds offset {offset}")
            count = min(length, self.room(offset))
            parts.append(file.pread(count, offset - start))
            offset += count
            length -= count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cut(self, end: int) -> None:
        """Forget everything from `end` on: later files go, and the rest of its own file becomes zeros again."""
        for start in [start for start in self._starts if start >= end]:
            self._files.pop(start).close()
            self._starts.remove(start)
            self._dirty.discard(start)
            self._disk.unlink(self._folder / f"{start:0{NAME_DIGITS}d}")
            self._names_dirty = True
        if self._starts and end < self.capacity_end:
            start = self._starts[-1]
            file = self._files[start]
            file.truncate(end - start)
            self._give_length(file)
            self._dirty.add(start)
        self._allocated_to = end

    def distrust(self, begin: int) -> None:
        """What stands from `begin` on came from a process that died: it is on disk only after the next sync."""
        self._dirty.update(start for start in self._starts if start + self._file_bytes > begin)
        self._names_dirty = True

    def take_sync(self) -> Callable[[], None]:
        """The call that makes everything written so far durable, names included; it may run in a thread.

        What is written after this moment stays dirty for the next one. The call raises OSError, after which everything
        it should have synced is in doubt for ever (RELIABILITY.md: never a second try).
        """
        files = [self._files[start] for start in sorted(self._dirty)]
        folder = self._folder if self._names_dirty else None
        self._dirty.clear()
        self._names_dirty = False

        def sync() -> None:
            for file in files:
                file.sync_data()
            if folder is not None:
                self._disk.sync_dir(folder)

        return sync

    def close(self) -> None:
        """Give the descriptors back; makes nothing durable."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        self._starts.clear()

    def reserve(self, begin: int, end: int) -> None:
        """Have real blocks for the range, so that writing there cannot fail for want of space. Raises OSError."""
        if self._ahead_bytes is None or end <= self._allocated_to:
            return
        at = begin
        while at < end:
            self.ensure(at)
            start = at - at % self._file_bytes
            first = max(self._allocated_to, start)
            last = min(-(-end // self._ahead_bytes) * self._ahead_bytes, start + self._file_bytes)
            if last > first:
                self._files[start].allocate(first - start, last - first)
                self._allocated_to = last
            at = start + self._file_bytes

    def _give_length(self, file: DiskFile) -> None:
        if self._ahead_bytes is None:
            file.allocate(0, self._file_bytes)
        else:
            file.truncate(self._file_bytes)
