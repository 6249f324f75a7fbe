"""Files of a disk that are open only while they are used: there may be more of them than a process has descriptors.

Invariants: `open_max` files at most have a descriptor, and those in use besides; of the others one that was not used
since the last time around loses its descriptor first; a file keeps its descriptor during each call, from `pin` to
`unpin`, and in the turn in which it is held; a closed file is never opened again.

Losing the descriptor makes nothing durable and forgets nothing: `sync_data` opens the file again; from Linux 4.17 on
an error of writing back that has not been reported yet is reported to that new descriptor (ADR 100).
"""

from __future__ import annotations

import errno
import sys
import threading
from collections import OrderedDict
from pathlib import Path

from osenv.disk import Disk, DiskFile

_WINDOWS_OPEN_FILES = 8_192  # of the C runtime at most; sockets are not counted there


class PooledFile:
    """A `DiskFile` that borrows a descriptor for each call. All methods but `pwrite` may be called from any thread."""

    __slots__ = ("file", "held_in", "is_closed", "opening", "path", "pool", "used", "users")

    def __init__(self, pool: PooledFiles, path: Path) -> None:
        self.pool, self.path = pool, path
        self.file: DiskFile | None = None
        self.users = 0
        self.held_in = 0  # the newest turn in which it was held
        self.used = True  # since the pool has last looked for files to close
        self.is_closed = False
        self.opening = threading.Lock()

    def pin(self) -> DiskFile:
        """The open file, which keeps its descriptor until `unpin`. Raises OSError (EBADF after `close`)."""
        return self.pool.take(self)

    def unpin(self) -> None:
        """One `pin` less."""
        self.pool.give_back(self)

    def pread(self, length: int, offset: int) -> bytes:
        file = self.pool.take(self)
        try:
            return file.pread(length, offset)
        finally:
            self.pool.give_back(self)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        if self.held_in == self.pool.turn and (file := self.file) is not None:
            file.pwrite(data, offset)
            return
        file = self.pool.take(self)
        try:
            file.pwrite(data, offset)
        finally:
            self.pool.give_back(self)

    def sync_data(self) -> None:
        file = self.pool.take(self)
        try:
            file.sync_data()
        finally:
            self.pool.give_back(self)

    def allocate(self, offset: int, length: int) -> None:
        file = self.pool.take(self)
        try:
            file.allocate(offset, length)
        finally:
            self.pool.give_back(self)

    def truncate(self, size: int) -> None:
        file = self.pool.take(self)
        try:
            file.truncate(size)
        finally:
            self.pool.give_back(self)

    def size(self) -> int:
        file = self.pool.take(self)
        try:
            return file.size()
        finally:
            self.pool.give_back(self)

    def close(self) -> None:
        self.pool.close(self)


class PooledFiles:
    """The descriptors of many files of one disk. One thread has turns, in which it holds files and writes them."""

    def __init__(self, disk: Disk, open_max: int) -> None:
        self.disk = disk
        self.turn = 1
        self._open_max = open_max
        self._open: OrderedDict[PooledFile, None] = OrderedDict()  # the first ones are looked at first
        self._lock = threading.Lock()

    def open(self, path: Path, *, create: bool = False) -> PooledFile:
        """See `Disk.open`."""
        pooled = PooledFile(self, path)
        self._make_room()
        self._opened(pooled, self.disk.open(path, create=create))
        return pooled

    def new_turn(self) -> None:
        """Files that were held are held no more."""
        self.turn += 1

    def hold(self, pooled: PooledFile) -> None:
        """Have the file open until the next `new_turn`. Raises OSError."""
        pooled.used, pooled.held_in = True, self.turn
        if pooled.file is None:  # only now: `_make_room` looks the other way round
            self.take(pooled)
            self.give_back(pooled)

    def take(self, pooled: PooledFile) -> DiskFile:
        """See `PooledFile.pin`."""
        pooled.used = True
        with self._lock:
            pooled.users += 1
            file = pooled.file
        if file is not None:
            return file
        try:
            return self._reopened(pooled)
        except OSError:
            self.give_back(pooled)
            raise

    def give_back(self, pooled: PooledFile) -> None:
        """See `PooledFile.unpin`."""
        with self._lock:
            pooled.users -= 1

    def close(self, pooled: PooledFile) -> None:
        """Close the file for good."""
        with pooled.opening:
            pooled.is_closed = True
            with self._lock:
                file, pooled.file = pooled.file, None
                self._open.pop(pooled, None)
        if file is not None:
            file.close()

    def _reopened(self, pooled: PooledFile) -> DiskFile:
        with pooled.opening:  # another thread may be about to
            if pooled.is_closed:
                raise OSError(errno.EBADF, "this file is closed", str(pooled.path))
            if pooled.file is not None:
                return pooled.file
            self._make_room()
            return self._opened(pooled, self.disk.open(pooled.path))

    def _opened(self, pooled: PooledFile, file: DiskFile) -> DiskFile:
        with self._lock:
            pooled.file = file
            self._open[pooled] = None
        return file

    def _make_room(self) -> None:
        """Close files that are not in use, so that one more may be open; of the others each is passed over once."""
        surplus: list[DiskFile] = []
        with self._lock:
            count = len(self._open) - self._open_max + 1
            for _ in range(2 * len(self._open) if count > 0 else 0):
                pooled = next(iter(self._open))
                self._open.move_to_end(pooled)
                if pooled.used or pooled.users:
                    pooled.used = False
                    continue
                file, pooled.file = pooled.file, None
                if pooled.held_in == self.turn:  # held meanwhile, or for longer
                    pooled.file = file
                    continue
                del self._open[pooled]
                if file is not None:
                    surplus.append(file)
                if len(surplus) == count:
                    break
        for file in surplus:
            file.close()


def raise_open_files_limit(wanted: int) -> int:
    """Raise the limit to `wanted` as far as this process may; return the limit. It is never lowered.

    Shells start programs with 1,024 for the sake of select(), and allow them more.
    """
    if sys.platform == "win32":
        return _WINDOWS_OPEN_FILES
    import resource  # noqa: PLC0415 - not on Windows

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted if soft == resource.RLIM_INFINITY else soft
    raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised
