"""The commit log: every message of every topic, end to end, in files of one size (mechanism S2)."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from pathlib import Path

from mq_broker.store.errors import StoreWriteError
from mqproto.record import SEGMENT_HEAD, encode_blank
from osenv import DiskFile, PooledFile, PooledFiles

BLANK_BYTES_MIN = SEGMENT_HEAD.size  # room for a blank always remains at a file's end, as in RocketMQ
NAME_DIGITS = 20  # of a file's name
HOT_TAIL_BYTES = 16 * 1024 * 1024


class CommitLog:
    """Appends runs of sealed records and reads them back.

    Invariants: `begin` <= `end`; every byte below `end` belongs to a record or to the blank at a file's end; a run of
    bytes given to `append` lies in one file; beyond `end` there is nothing that could be taken for a record.
    """

    def __init__(self, files: SegmentFiles, file_bytes: int) -> None:
        self.files = files
        self._file_bytes = file_bytes
        self.run_bytes_max = file_bytes - BLANK_BYTES_MIN  # the longest run that a file can take
        self._tail = HotTail()
        self._unclean_to = 0  # a failed write may have left bytes up to here
        self.begin = files.begin
        self.end = files.begin  # recovery moves it

    @property
    def file_bytes(self) -> int:
        """Length of each file."""
        return self._file_bytes

    def place(self, size: int) -> int:
        """The offset at which a run of `size` bytes will stand; closes the current file with a blank if it must.

        Raises StoreWriteError when the run is longer than a file, or when the disk rejects the blank.
        """
        if size > self.run_bytes_max:
            raise StoreWriteError(f"{size} bytes do not fit a commit-log file of {self._file_bytes} bytes")
        if size + BLANK_BYTES_MIN > self.files.room(self.end):
            self.append_blank()
        return self.end

    def append_blank(self) -> None:
        """Close the current file. Raises StoreWriteError."""
        room = self.files.room(self.end)
        self._write(encode_blank(room), self.end)
        self.end += room

    def append_damaged(self, data: bytes) -> None:
        """Write bytes that are no record, because they stand here in the log that this one is a copy of.

        Raises StoreWriteError; then nothing of them is there.
        """
        self._write(data, self.end)
        self.end += len(data)

    def append(self, run: bytes | bytearray) -> None:
        """Write `run` at `end`, where `place` has put it. Raises StoreWriteError; then nothing of it is there."""
        self._write(run, self.end)
        self._tail.add(self.end, run)
        self.end += len(run)

    def read_hot(self, offset: int, size: int) -> bytes | None:
        """The bytes when they are in memory, else None."""
        return self._tail.read(offset, size)

    def hot_chunk(self, offset: int) -> tuple[bytes | bytearray, int] | None:
        """Whole records in memory with the place of the one at `offset` among them, or None."""
        return self._tail.chunk(offset)

    def is_hot_from(self, offset: int) -> bool:
        """Whether every record from `offset` on is in memory; blanks never are."""
        return self._tail.begin <= offset

    def read(self, offset: int, size: int) -> bytes:
        """The bytes from disk; may block on it. Raises ValueError outside of the log."""
        if offset < self.begin or offset + size > self.end:
            raise ValueError(f"{size} bytes at {offset} are not in the log, which runs from {self.begin} to {self.end}")
        return self.files.read(size, offset)

    def read_if_there(self, offset: int, size: int) -> bytes | None:
        """The bytes from disk, or None when the log does not have them; may block. Raises OSError."""
        return self.read(offset, size) if size > 0 and self.begin <= offset and offset + size <= self.end else None

    def recovered(self, end: int, *, durable_end: int) -> None:
        """Recovery found the log's true end: what lies beyond becomes zeros.

        From `durable_end` on, all of it is durable only after the next sync.
        """
        self.files.cut(end, keep_place=True)  # a log without files says no more where it begins
        self.files.distrust(durable_end)
        self._tail.clear(end)
        self.end = end

    def reopened(self) -> None:
        """Its files are others now, and recovery has not looked at them yet."""
        self.begin = self.end = self.files.begin
        self._tail.clear(self.begin)

    def prepare(self) -> None:
        """Have the file that takes the next bytes, and the one after it. May block; raises OSError."""
        self.files.ensure(self.end)
        if self.files.room(self.end) < self._file_bytes // 2:
            self.files.ensure(self.end + self.files.room(self.end))

    def take_sync(self) -> Callable[[], None]:
        """The call that makes everything below the present `end` durable; see `SegmentFiles.take_sync`."""
        return self.files.take_sync()

    def close(self) -> None:
        """Give the files back."""
        self.files.close()

    def _write(self, data: bytes | bytearray, offset: int) -> None:
        try:
            if self._unclean_to > offset:
                # Leftovers of a failed write could look like records behind this one: they go first.
                self.files.write(bytes(self._unclean_to - offset), offset)
                self._unclean_to = 0
            self.files.write(data, offset)
        except OSError as error:
            self._unclean_to = max(self._unclean_to, offset + len(data))
            raise StoreWriteError(f"the disk rejected {len(data)} bytes: {error}") from error


class SegmentFiles:
    """A run of files of one size, each named after the offset of its first byte in 20 digits (mechanism S2).

    Byte offsets onto files. Without `ahead_bytes` a new file gets all its blocks, else only so many at a time.

    Changes happen on one thread, in the order in which they are called; reads, and `ensure`, may come from any thread.
    `root` is a folder above that is durable. With `keeps_unsynced_open` a file that is to be synced keeps its
    descriptor until then: no error of writing it back can get lost, and its sync cannot fail for want of a descriptor.

    Invariants: files follow each other without a gap; every file has its full length from the moment it exists; an
    access lies within the run.
    """

    def __init__(
        self,
        open_files: PooledFiles,
        root: Path,
        folder: Path,
        file_bytes: int,
        *,
        ahead_bytes: int | None = None,
        keeps_unsynced_open: bool = False,
        keeps_name_order: bool = False,
        only_file: int | None = None,
    ) -> None:
        """With `keeps_name_order` no power cut leaves a file without the ones before it: a run that does not begin at 0
        has lost its beginning to retention. `only_file` is the offset of the only file, if that is known to have its
        length; the folder is not listed.
        """
        self._open_files, self._disk = open_files, open_files.disk
        self._folder, self._file_bytes, self._ahead_bytes = folder, file_bytes, ahead_bytes
        self._root, self._keeps_unsynced_open = root, keeps_unsynced_open
        self._files: dict[int, PooledFile] = {}
        self._allocated_to = 0
        self._dirty: set[int] = set()
        self._pinned: dict[int, DiskFile] = {}  # of the dirty ones
        self._folders_dirty: list[Path] = []  # parents, when the folder itself may be new
        self._names_dirty = self._folder_known = False
        self._keeps_name_order = keeps_name_order
        self._names_made = self._names_durable = 0  # counted, those of a process that died together as one
        self._making = threading.Lock()
        self._made: deque[tuple[int, list[Path]]] = deque()  # files that no sync knows of yet, with folders of theirs
        self._starts: list[int] = []
        self.stray: list[int] = []  # files behind a gap: they do not belong to the run
        if only_file is None:
            self._look_at_folder()
        else:
            self._starts, self._files = [only_file], {only_file: PooledFile(open_files, self._path(only_file))}

    def _look_at_folder(self) -> None:
        """Open the files that are there. Raises ValueError, OSError."""
        folder, file_bytes = self._folder, self._file_bytes
        for name in self._disk.list_dir(folder):
            if name.isdigit() and len(name) == NAME_DIGITS:
                self._files[int(name)] = self._open_files.open(folder / name)
        self._starts = sorted(self._files)
        for index in range(1, len(self._starts)):
            if self._starts[index] != self._starts[index - 1] + file_bytes:
                self.stray, self._starts = self._starts[index:], self._starts[:index]
                break
        for start in self._starts:
            if start % file_bytes:
                raise ValueError(f"{folder}: the name {start:020d} is no multiple of {file_bytes}, the files' length")
        for file in self._files.values():  # a cut reads strays, too
            if file.size() != file_bytes:  # a crash came between creating the file and its length
                self._give_length(file)

    def drop(self, starts: list[int]) -> None:
        """Remove these files, strays or others: a power cut has left them without the ones before. Raises OSError."""
        for start in starts[:]:
            self._files.pop(start).close()
            self._disk.unlink(self._path(start))
            self._dirty.discard(start)
            self._names_dirty = True
        self._starts = [start for start in self._starts if start in self._files]
        self.stray = [start for start in self.stray if start in self._files]

    @property
    def starts(self) -> list[int]:
        """Offsets of the files of the run."""
        return self._starts[:]

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

    def file_begin(self, offset: int) -> int:
        """Offset of the first byte of the file that holds `offset`."""
        return offset - offset % self._file_bytes

    def ensure(self, offset: int) -> None:
        """Have the file that contains `offset`, which is the one behind the last at the most. Raises OSError."""
        start = self.file_begin(offset)
        if start in self._files:
            return
        with self._making:  # a thread may prepare the very file that is needed now
            if start not in self._files:
                self._make(start)

    def _make(self, start: int) -> None:
        if self._keeps_name_order and self._names_durable < self._names_made:
            self._disk.sync_dir(self._folder)
            self._names_durable = self._names_made
        if not self._folder_known:
            self._disk.make_dirs(self._folder)
        path = self._path(start)
        file = self._open_files.open(path, create=True)
        try:
            self._give_length(file)
        except OSError:
            file.close()
            self._disk.unlink(path)
            raise
        if self._keeps_unsynced_open:
            self._keep_open(start, file)
        self._made.append((start, [] if self._folder_known else self._parents()))  # before the first write to it
        self._folder_known = True
        self._names_made += 1
        self._files[start] = file
        self._starts.append(start)

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write `data`, across files if need be, creating them. Raises OSError; any part may have been written then."""
        if self._ahead_bytes is not None:
            self.reserve(offset, offset + len(data))
        at, view = 0, memoryview(data)
        while at < len(data):
            place = (offset + at) % self._file_bytes
            start = offset + at - place
            count = min(len(data) - at, self._file_bytes - place)
            file = self._pinned.get(start) or self._file_to_write(start)
            file.pwrite(view[at : at + count], place)
            self._dirty.add(start)
            at += count

    def _file_to_write(self, start: int) -> DiskFile:
        if start not in self._files:
            self.ensure(start)
        file = self._files[start]
        if not self._keeps_unsynced_open:
            return file
        self._keep_open(start, file)
        return self._pinned[start]

    def _keep_open(self, start: int, file: PooledFile) -> None:
        if start not in self._pinned:
            self._pinned[start] = file.pin()

    def read(self, length: int, offset: int) -> bytes:
        """Exactly `length` bytes, across files if need be. Raises ValueError outside the run."""
        parts = []
        while length > 0:
            start = self.file_begin(offset)
            file = self._files.get(start)
            if file is None:
                raise ValueError(f"{self._folder}: no file holds offset {offset}")
            count = min(length, self.room(offset))
            parts.append(file.pread(count, offset - start))
            offset += count
            length -= count
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cut(self, end: int, *, keep_place: bool = False) -> None:
        """Forget everything from `end` on: later files go, and the rest of its own file becomes zeros again.

        A file that begins at `end` goes too; with `keep_place` it stays, so that the run never loses its last name.
        """
        for start in [start for start in self._starts if start > end or (start == end and not keep_place)]:
            self._files.pop(start).close()
            self._starts.remove(start)
            self._dirty.discard(start)
            self._pinned.pop(start, None)
            self._disk.unlink(self._path(start))
            self._names_dirty = True
        if self._starts and end < self.capacity_end:
            start = self._starts[-1]
            file = self._files[start]
            file.truncate(end - start)
            self._give_length(file)
            self._dirty.add(start)
        self._allocated_to = end

    def ends_at(self, end: int, look_bytes: int) -> bool:
        """Go on writing at `end`, if only zeros stand in the next `look_bytes` of the last file; whether it is so.

        It is not when the last file begins at `end`: nothing is in it, and `cut` decides whether it stays.
        """
        if not self._starts or not self._starts[-1] < end <= self.capacity_end:
            return False
        if any(self.read(min(look_bytes, self.capacity_end - end), end)):
            return False
        self._allocated_to = end
        return True

    def has_one_file_around(self, offset: int) -> bool:
        """Whether there is one file, which has the bytes before and behind `offset`. A checkpoint asks all queues."""
        return len(self._starts) == 1 and 0 < offset - self._starts[0] < self._file_bytes

    @property
    def first_file_end(self) -> int | None:
        """Offset behind the first file when it is not the only one, else None."""
        return self._starts[1] if len(self._starts) > 1 else None

    def unlink_first(self) -> None:
        """Remove the first file's name, durably; what is open can still be read. May run in a thread. Raises OSError.

        Durably, because a later file must never be gone when an earlier one is still there.
        """
        self._files[self._starts[0]].pin()  # without its name it could not be opened again
        self._disk.unlink(self._path(self._starts[0]))
        self._disk.sync_dir(self._folder)

    def forget_first(self) -> PooledFile:
        """The second file becomes the first; returns the one before it, to be closed when no reader has it any more."""
        start = self._starts.pop(0)
        self._dirty.discard(start)
        self._pinned.pop(start, None)
        return self._files.pop(start)

    def distrust(self, begin: int) -> None:
        """What stands from `begin` on came from a process that died: it is on disk only after the next sync."""
        doubtful = [start for start in self._starts if start + self._file_bytes > begin]
        self._dirty.update(doubtful)
        if self._keeps_unsynced_open:
            for start in doubtful:
                self._keep_open(start, self._files[start])
        self._names_dirty, self._folders_dirty = True, self._parents()
        self._names_made += 1

    def take_sync(self) -> Callable[[], None]:
        """The call that makes everything written so far durable, names included; it may run in a thread.

        What is written after this moment stays dirty for the next one. The call raises SyncError, after which
        everything it should have synced is in doubt for ever (docs/reference/faults.md#store-rules).
        """
        self._take_made()
        starts = [start for start in sorted(self._dirty) if start in self._files]  # one is not there for a moment
        files = [self._files[start] for start in starts]
        folders = [*([self._folder] if self._names_dirty else []), *self._folders_dirty]
        pinned = [self._files[start] for start in starts if self._pinned.pop(start, None) is not None]
        self._dirty.difference_update(starts)
        names_made = self._names_made
        self._names_dirty, self._folders_dirty = False, []

        def sync() -> None:
            for file in files:
                file.sync_data()
            for folder in folders:
                self._disk.sync_dir(folder)
            self._names_durable = max(self._names_durable, names_made)
            for file in pinned:
                file.unpin()

        return sync

    def take_parents(self) -> list[Path]:
        """The folders above that have to be synced besides: `take_sync` leaves out what was taken here."""
        self._take_made()
        parents, self._folders_dirty = self._folders_dirty, []
        return parents

    def _take_made(self) -> None:
        while self._made:
            start, parents = self._made.popleft()
            self._dirty.add(start)
            self._names_dirty, self._folders_dirty = True, [*self._folders_dirty, *parents]

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
        for start in range(self.file_begin(begin), end, self._file_bytes):
            self.ensure(start)
            first = max(self._allocated_to, start)
            last = min(-(-end // self._ahead_bytes) * self._ahead_bytes, start + self._file_bytes)
            if last > first:
                self._files[start].allocate(first - start, last - first)
                self._allocated_to = last

    def hold(self, begin: int, end: int) -> None:
        """Have the files of the range open until the next `PooledFiles.new_turn`: writing there needs no descriptor.

        Raises OSError.
        """
        for start in range(self.file_begin(begin), end, self._file_bytes):
            self.ensure(start)
            self._open_files.hold(self._files[start])

    def _parents(self) -> list[Path]:
        return list(self._folder.parents[: len(self._folder.parts) - len(self._root.parts)])

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:0{NAME_DIGITS}d}"

    def _give_length(self, file: PooledFile) -> None:
        if self._ahead_bytes is None:
            file.allocate(0, self._file_bytes)
        else:
            file.truncate(self._file_bytes)


class HotTail:
    """Chunks of the log by offset.

    Invariants: chunks are in the order of their offsets, do not overlap, and never change after they were added; their
    sum is at most `limit_bytes`, but for the newest one.
    """

    def __init__(self, limit_bytes: int = HOT_TAIL_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._starts: list[int] = []
        self._chunks: list[bytes | bytearray] = []
        self._first = 0  # chunks before this index are forgotten; the lists are shortened now and then
        self._size = 0
        self.begin = 0  # nothing that was added from here on has been forgotten

    def add(self, offset: int, chunk: bytes | bytearray) -> None:
        """Keep `chunk`, which was just written at `offset`, and forget the oldest if there are too many."""
        self._starts.append(offset)
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size > self._limit_bytes and self._first < len(self._chunks) - 1:
            self._size -= len(self._chunks[self._first])
            self._chunks[self._first] = b""
            self._first += 1
            self.begin = self._starts[self._first]
        if self._first > 256 and self._first * 2 > len(self._chunks):
            del self._starts[: self._first], self._chunks[: self._first]
            self._first = 0

    def read(self, offset: int, size: int) -> bytes | None:
        """The bytes, or None when they are not all here; they may reach over several chunks."""
        index = bisect_right(self._starts, offset) - 1
        if index < self._first:
            return None
        parts: list[bytes] = []
        at = offset - self._starts[index]
        while True:
            chunk = self._chunks[index]
            part = bytes(memoryview(chunk)[at : at + size])
            parts.append(part)
            size -= len(part)
            if size == 0:
                return part if len(parts) == 1 else b"".join(parts)
            index += 1
            if not part or index == len(self._starts) or self._starts[index] != self._starts[index - 1] + len(chunk):
                return None
            at = 0

    def chunk(self, offset: int) -> tuple[bytes | bytearray, int] | None:
        """The chunk that has the byte at `offset`, and where in it; None when it is not here."""
        index = bisect_right(self._starts, offset) - 1
        if index < self._first or offset - self._starts[index] >= len(self._chunks[index]):
            return None
        return self._chunks[index], offset - self._starts[index]

    def clear(self, begin: int) -> None:
        """Forget everything; what comes is at `begin` or behind it."""
        self._starts.clear()
        self._chunks.clear()
        self._first = self._size = 0
        self.begin = begin
