"""Files as a port. Each docstring says what is durable when the call returns.

Invariant: every change to a file that the queue keeps goes through a `Disk`; no part of the store calls the operating
system itself. Errors are the operating system's own (`OSError` with its errno), real or simulated; a sync that fails is
a SyncError, and nothing else is. An interrupted call (EINTR) never gets this far: Python repeats it (PEP 475).
"""

from __future__ import annotations

import asyncio
import enum
import errno
import importlib.util
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

REWRITE_BYTES = 1024 * 1024

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

P = ParamSpec("P")
T = TypeVar("T")

_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS}  # a process that cannot change a folder has created nothing in it


class SyncError(OSError):
    """A sync failed: the operating system may have forgotten what it should have written, and calls it clean.

    A second sync of the same file would report success although the bytes are gone
    (docs/reference/faults.md#store-rules: never a second try). `errno` and `strerror` are those of the failed call.
    """


class Lane(enum.Enum):
    """Which calls a blocking call may have to wait for: those of its own lane, and no others."""

    SYNC = "sync"  # syncs that a caller's answer waits for; one thread
    READ = "read"  # reads for clients, however many they ask for
    WORK = "work"  # everything else: checkpoints, state files, renames


class DiskUsage(NamedTuple):
    """How full a file system is."""

    used_share: float  # 0 to 1; what is kept for root is neither used nor free
    free_bytes: int  # for processes without privileges


class DiskFile(Protocol):
    """An open file, read and written by position."""

    def pread(self, length: int, offset: int) -> bytes:
        """Up to `length` bytes from `offset`; fewer only at the end of the file."""

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of `data` at `offset`. Nothing is durable yet. On OSError any part of it may have been written."""

    def sync_data(self) -> None:
        """Make the content and the length durable (fdatasync). After a SyncError the content is in doubt for ever."""

    def allocate(self, offset: int, length: int) -> None:
        """Reserve real blocks for the range, zero-filled where it was empty, growing the file if need be."""

    def truncate(self, size: int) -> None:
        """Cut the file, or grow it with a hole of zeros. Durable after `sync_data`."""

    def size(self) -> int:
        """Length in bytes."""

    def close(self) -> None:
        """Give the descriptor back; makes nothing durable."""


class FileLock(Protocol):
    """An exclusive lock that ends with its holder."""

    def release(self) -> None:
        """Release the lock."""


class Disk(Protocol):
    """What the project may ask of a file system. Paths are absolute."""

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> DiskFile:
        """Open for reading and writing, or for reading only. A created name is durable after `sync_dir` of its folder.

        Raises FileNotFoundError, IsADirectoryError. Changing a file that is open for reading only raises OSError.
        """

    def exists(self, path: Path) -> bool:
        """Whether a file or folder has this name."""

    def list_dir(self, path: Path) -> list[str]:
        """Names in the folder, sorted; empty when there is no such folder."""

    def make_dirs(self, path: Path) -> None:
        """Create the folder and its parents where missing; each is durable after `sync_dir` of its own parent."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, atomically taking the place of `target`; durable after `sync_dir`."""

    def unlink(self, path: Path) -> None:
        """Remove the name; durable after `sync_dir`."""

    def sync_dir(self, path: Path) -> None:
        """Make the names in this folder durable. After a SyncError they are in doubt for ever."""

    def lock(self, path: Path) -> FileLock:
        """Take the exclusive lock on this file, creating it. Raises BlockingIOError when another one holds it."""

    def usage(self, path: Path) -> DiskUsage:
        """How full the file system is that holds `path`, as df shows it. Raises FileNotFoundError."""

    def boot_id(self) -> str:
        """The start of the machine's kernel, whose page cache keeps what was written and not synced; "" if not known.

        A process that finds the id of one before it finds all that that one had written, unless a sync has failed or
        the file system was shut down or detached meanwhile.
        """

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking `call` away from the event loop, in `Lane.WORK`, and await its result."""

    async def offload_in(self, lane: Lane, call: Callable[[], T]) -> T:
        """The same in another lane."""


@contextmanager
def _sync_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SyncError(error.errno, error.strerror) from error


class _RealFile:
    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, length, offset)
        if len(data) == length or not data:
            return data
        parts = [data]  # a short read: Linux caps one call at 2 GiB and signals may cut it short
        while data and (length := length - len(data)):
            offset += len(data)
            data = os.pread(self._fd, length, offset)
            parts.append(data)
        return b"".join(parts)

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        written = os.pwrite(self._fd, data, offset)
        total = len(data)
        while written < total:
            count = os.pwrite(self._fd, memoryview(data)[written:], offset + written)
            if count == 0:
                raise OSError(errno.EIO, f"the disk took {written} of {total} bytes and then none")
            written += count

    def sync_data(self) -> None:
        with _sync_errors():
            os.fdatasync(self._fd)

    def allocate(self, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, offset, length)
        except AttributeError:  # macOS has no such call
            self._rewrite(offset, offset + length)
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:  # musl does not fill in for a file system that cannot do it
                raise
            self._rewrite(offset, offset + length)

    def _rewrite(self, at: int, end: int) -> None:
        """Write over the range what stands there, zeros where nothing does: that takes real blocks, too."""
        while at < end:
            length = min(REWRITE_BYTES, end - at)
            self.pwrite(self.pread(length, at).ljust(length, b"\0"), at)
            at += length

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        # The kernel may reuse the number at once: later calls on this object must not reach another file.
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


class _RealLock:
    def __init__(self, descriptor: int) -> None:
        self._fd = descriptor

    def release(self) -> None:
        descriptor, self._fd = self._fd, -1
        if descriptor >= 0:
            os.close(descriptor)


class RealDisk:
    """The file system of Linux or another POSIX system, with a few threads for the calls that block."""

    def __init__(self, threads: int = 4, read_threads: int = 4) -> None:
        """Threads of `Lane.WORK` and `Lane.READ`.

        Raises OSError (ENOSYS) on a system that is not POSIX: clients run there, and the simulated disk.
        """
        if importlib.util.find_spec("fcntl") is None:
            raise OSError(
                errno.ENOSYS,
                "the broker's store runs on POSIX systems only: it writes by position and locks with fcntl,"
                " and Windows has neither",
            )
        counts = {Lane.SYNC: 1, Lane.READ: read_threads, Lane.WORK: threads}
        self._pools: dict[Lane, Executor] = {
            lane: ThreadPoolExecutor(count, thread_name_prefix=f"disk-{lane.value}") for lane, count in counts.items()
        }

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> DiskFile:
        flags = os.O_CLOEXEC | (os.O_RDONLY if read_only else os.O_RDWR) | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, 0o640)
        if read_only and stat.S_ISDIR(
            os.fstat(descriptor).st_mode
        ):  # only opening it for writing is rejected by itself
            os.close(descriptor)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return _RealFile(descriptor)

    def exists(self, path: Path) -> bool:
        return path.exists()

    def list_dir(self, path: Path) -> list[str]:
        try:
            return sorted(os.listdir(path))  # noqa: PTH208 - names are wanted, not paths
        except FileNotFoundError:
            return []

    def make_dirs(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_dir(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with _sync_errors():
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: Path) -> FileLock:
        import fcntl  # noqa: PLC0415 - clients import this module on systems that have no fcntl

        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The kind that Java takes, too: neither kind sees the other.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.EACCES:  # lockf may say so, too
                raise BlockingIOError(errno.EAGAIN, "locked by another holder", str(path)) from error
            raise
        return _RealLock(descriptor)

    def usage(self, path: Path) -> DiskUsage:
        blocks = os.statvfs(path)
        used = blocks.f_blocks - blocks.f_bfree
        total = used + blocks.f_bavail  # what is kept for root is neither used nor ours
        return DiskUsage(used / total if total else 0.0, blocks.f_bavail * blocks.f_frsize)

    def boot_id(self) -> str:
        try:
            return BOOT_ID.read_text().strip()
        except OSError:  # no Linux, or a sandbox without /proc
            return ""

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.offload_in(Lane.WORK, lambda: call(*args, **kwargs))

    async def offload_in(self, lane: Lane, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pools[lane], call)

    def close(self) -> None:
        """End the threads; waits for the calls that run."""
        for pool in self._pools.values():
            pool.shutdown(wait=True)


def replace_file(disk: Disk, path: Path, content: bytes, *, keep_previous: bool = True) -> None:
    """Put `content` in the place of `path` so that a crash leaves the old content or the new, and durable on return.

    Temporary file, sync, rename, sync of the folder (docs/reference/faults.md#store-rules). The content before is kept
    beside it under the name `<path>.bak`, unless `keep_previous` is false.
    """
    temporary, backup = path.with_name(path.name + ".tmp"), path.with_name(path.name + ".bak")
    _write_whole(disk, temporary, content)
    if keep_previous and disk.exists(path):
        _write_whole(disk, backup_temporary := path.with_name(path.name + ".bak.tmp"), read_file(disk, path))
        disk.replace(backup_temporary, backup)
    disk.replace(temporary, path)
    disk.sync_dir(path.parent)


def read_file(disk: Disk, path: Path) -> bytes:
    """The whole content. Raises FileNotFoundError."""
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def _write_whole(disk: Disk, path: Path, content: bytes) -> None:
    file = disk.open(path, create=True)
    try:
        file.truncate(0)
        file.pwrite(content, 0)
        file.sync_data()
    finally:
        file.close()


def make_durable_dirs(disk: Disk, folder: Path) -> None:
    """Have the folder, durably, with all its parents. Raises OSError.

    Every parent is synced, not only those of folders that were missing: a process that made them may have been killed
    before it could sync them.
    """
    disk.make_dirs(folder)
    for parent in folder.parents:
        try:
            disk.sync_dir(parent)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
