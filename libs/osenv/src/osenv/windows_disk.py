"""Small files on Windows: what a client keeps there. The broker's store needs POSIX, and rejects this disk's system.

Where it promises less than RealDisk: a new or renamed name is durable when the file system says so (NTFS journals it),
because a folder cannot be synced there; and a range that is allocated is written, so that a file has no holes.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from osenv.disk import DiskFile, DiskUsage, FileLock, Lane, RealDisk, _RealFile, _RealLock, _sync_errors


class _WindowsFile(_RealFile):
    """Windows reads and writes at the file's own position, so that one call at a time may move it."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._one_at_a_time = threading.Lock()

    def pread(self, length: int, offset: int) -> bytes:
        parts = []
        with self._one_at_a_time:
            os.lseek(self._fd, offset, os.SEEK_SET)
            while length and (data := os.read(self._fd, length)):
                parts.append(data)
                length -= len(data)
        return b"".join(parts)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        left = memoryview(data)
        with self._one_at_a_time:
            os.lseek(self._fd, offset, os.SEEK_SET)
            while left:
                left = left[os.write(self._fd, left) :]

    def sync_data(self) -> None:
        with _sync_errors():
            os.fsync(self._fd)

    def allocate(self, offset: int, length: int) -> None:
        self._rewrite(offset, offset + length)


class WindowsDisk(RealDisk):
    """Implements `osenv.Disk` with what Python offers on Windows."""

    def __init__(self, threads: int = 1) -> None:
        pool = ThreadPoolExecutor(threads, thread_name_prefix="disk")
        self._pools = dict.fromkeys(Lane, pool)  # a client's small files need no lanes

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> DiskFile:
        flags = (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0) | getattr(os, "O_BINARY", 0)
        try:
            return _WindowsFile(os.open(path, flags, 0o640))
        except PermissionError as error:
            if path.is_dir():  # Windows calls it that
                raise IsADirectoryError(errno.EISDIR, "this is a folder", str(path)) from error
            raise

    def sync_dir(self, path: Path) -> None:
        """Nothing: see the module's docstring."""

    def lock(self, path: Path) -> FileLock:
        msvcrt = importlib.import_module("msvcrt")  # only there, and type checkers elsewhere know nothing of it
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o640)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            os.close(descriptor)
            if error.errno in {errno.EACCES, errno.EDEADLK}:
                raise BlockingIOError(errno.EAGAIN, "locked by another holder", str(path)) from error
            raise
        return _RealLock(descriptor)

    def usage(self, path: Path) -> DiskUsage:
        disk = shutil.disk_usage(path)
        return DiskUsage(disk.used / disk.total if disk.total else 0.0, disk.free)


def disk_of_this_system(threads: int = 1) -> RealDisk:
    """For small files of a client, on any system."""
    return RealDisk(threads) if importlib.util.find_spec("fcntl") else WindowsDisk(threads)
