"""A run of store files, opened to be read and nothing else, whatever state they are in.

`SegmentFiles` makes a run right before it uses it; a tool that looks must not. Here a file that is missing is
reported in `faults` and one that has lost its end in `short`, and both read as zeros. A short file is no fault: a crash
may come before the length reaches the disk, the next start gives it back, and what was lost with it is missed itself.

Invariants: nothing is ever written; `read` gives exactly what was asked for, within `begin` to `capacity_end`.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from itertools import pairwise
from pathlib import Path

from mq_broker.store.commit_log import NAME_DIGITS
from osenv import Disk, DiskFile

OPEN_FILES_MAX = 4


class StoredFiles:
    """Byte offsets onto files that are named after the offset of their first byte in 20 digits."""

    def __init__(self, disk: Disk, folder: Path, usual_bytes: int) -> None:
        """`usual_bytes` is the length of a file where the files themselves do not tell. Raises OSError."""
        self._disk, self._folder, self._usual_bytes = disk, folder, usual_bytes
        self._open: OrderedDict[int, DiskFile] = OrderedDict()
        self.faults: list[str] = []
        self.short: list[str] = []
        self._sizes: dict[int, int] = {}
        names = names_in(disk, folder)
        if names is None:
            self.faults.append(f"{folder}: a file, where a folder of files belongs")
        for name in names or []:
            if name.isascii() and name.isdigit() and len(name) == NAME_DIGITS:
                self._sizes[int(name)] = self._size_of(folder / name)
            else:
                self.faults.append(f"{folder / name}: not the name of a file of this run")
        self.file_bytes = self._length_of_all()
        self._set_strangers_aside()
        starts = sorted(self._sizes)
        self.begin = starts[0] if starts else 0
        self.capacity_end = starts[-1] + self.file_bytes if starts else 0
        self.data_end = starts[-1] + self._sizes[starts[-1]] if starts else 0  # behind it there is nothing to be read
        self.missing = self._find_missing(starts)

    @property
    def file_count(self) -> int:
        """Files that are there."""
        return len(self._sizes)

    def room(self, offset: int) -> int:
        """Bytes from `offset` to the end of its file."""
        return self.file_bytes - offset % self.file_bytes

    def read(self, length: int, offset: int) -> bytes:
        """Exactly `length` bytes, zeros where the disk has none. Raises ValueError outside the run, OSError."""
        if offset < self.begin or offset + length > self.capacity_end:
            raise ValueError(f"{self._folder}: {length} bytes at {offset} are not between the first and the last file")
        parts = []
        while length > 0:
            count = min(length, self.room(offset))
            start = offset - offset % self.file_bytes
            part = self._file(start).pread(count, offset - start) if start in self._sizes else b""
            parts.append(part if len(part) == count else part + bytes(count - len(part)))
            offset += count
            length -= count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def is_missing(self, offset: int) -> bool:
        """Whether the file that would hold `offset` is not there."""
        return any(start <= offset < end for start, end in self.missing)

    def close(self) -> None:
        """Give the files back."""
        while self._open:
            self._open.popitem()[1].close()

    def _file(self, start: int) -> DiskFile:
        file = self._open.get(start)
        if file is None:
            file = self._open[start] = self._disk.open(self._path(start), read_only=True)
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        self._open.move_to_end(start)
        return file

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:0{NAME_DIGITS}d}"

    def _size_of(self, path: Path) -> int:
        file = self._disk.open(path, read_only=True)
        try:
            return file.size()
        finally:
            file.close()

    def _length_of_all(self) -> int:
        """The length that every file has, of which single ones may have lost a part. It divides every name."""
        starts = sorted(self._sizes)
        lengths = Counter(size for size in self._sizes.values() if size)
        fitting = [size for size in lengths if all(start % size == 0 for start in starts)]
        if fitting:
            return max(fitting, key=lambda size: (lengths[size], size))
        if len(starts) > 1:
            return min(after - before for before, after in pairwise(starts))
        return self._length_of_lone(*self._sizes.items()) if starts else 0

    def _length_of_lone(self, file: tuple[int, int]) -> int:
        start, size = file
        if start % self._usual_bytes == 0:
            return self._usual_bytes
        return min(start // parts for parts in range(1, start // max(size, 1) + 1) if start % parts == 0)

    def _set_strangers_aside(self) -> None:
        for start, size in sorted(self._sizes.items()):
            if size > self.file_bytes or start % self.file_bytes:
                self.faults.append(f"{self._path(start)}: {size} bytes, and no file of {self.file_bytes} begins there")
                del self._sizes[start]
            elif size < self.file_bytes:
                self.short.append(f"{self._path(start)}: only {size} bytes long")

    def _find_missing(self, starts: list[int]) -> list[tuple[int, int]]:
        gaps = [
            (before + self.file_bytes, after) for before, after in pairwise(starts) if after - before > self.file_bytes
        ]
        self.faults += [f"{self._folder}: no file holds offsets {begin} to {end - 1}" for begin, end in gaps]
        return gaps


def names_in(disk: Disk, folder: Path) -> list[str] | None:
    """The names in the folder, None when it is a file. Raises OSError."""
    try:
        return disk.list_dir(folder)
    except NotADirectoryError:
        return None
