"""An ext4 file system in a file, whose power can be cut: what had not reached the file is gone, as on a real machine.

The file lies on a tmpfs of its own with a cap on its size, so that a full machine can be had too: then the file system
takes a write and fails to write it back. Needs root and loop devices. Linux 6.18 calls a write to a loop device done
when the file took its beginning only, so that on a full machine what was synced would be gone: there every write is of
one page, for which there is room or not.

Each is mounted in a mount namespace of its own, which this process enters and stays in. A process that is started
elsewhere meanwhile, by `ip netns exec` or `unshare`, would keep a copy of the mount, and the failed file system with
it.

Invariants: nothing of it outlives the `with` block, neither a mount nor a loop device; each is taken down by its name.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from osenv import Rng

MIB = 1024 * 1024
IMAGE_BYTES = 256 * MIB  # sparse
JOURNAL_BYTES = 8 * MIB
PAGE_BYTES = 4_096  # also of a block of the file system
WINDOW_BYTES = 256 * 1024  # of the beginning of a file, where a small store has its data
# _IOR('X', 125, __u32): the file system is shut down at once.
EXT4_IOC_SHUTDOWN = 2 << 30 | 4 << 16 | ord("X") << 8 | 125
GOING_FLAGS_NOLOGFLUSH = 2  # without committing its journal
SYNC_RANGE_AND_WAIT = 7  # sync_file_range's WAIT_BEFORE, WRITE and WAIT_AFTER
# A file system that could have encrypted files keeps its memory in single pages, and writes them back one by one;
# another one keeps a long write in one piece.
PAGE_BY_PAGE = "encrypt"
LONGEST_WRITE = "/sys/dev/block/{}:{}/queue/max_sectors_kb"
TOOL_TIMEOUT_S = 60
BUSY_TIMEOUT_S = 10
EXIT_BUSY = 32  # of umount; also when a process has only just ended

CLONE_NEWNS = 0x00020000
MS_REC, MS_PRIVATE = 1 << 14, 1 << 18

CACHESTAT = 451  # the system call's number on every architecture; Linux 6.5 and newer have it

_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = _libc.sync_file_range
_sync_file_range.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)


class Ext4Image:
    """A context manager: mounted inside, gone behind it. `root` is the file system's root folder."""

    def __init__(self, folder: Path, *, options: str = "", room_bytes: int = 2 * IMAGE_BYTES) -> None:
        """Everything lies below `folder`; `options` are mount's; the file may take `room_bytes` of memory."""
        self._options, self._room_bytes = options, room_bytes
        self._machine, self.root = folder / "machine", folder / "disk"
        self.image = self._machine / "image"

    def __enter__(self) -> Self:
        _enter_own_mounts()
        self._machine.mkdir(parents=True)
        self.root.mkdir()
        _tool("mount", "-t", "tmpfs", "-o", f"size={self._room_bytes}", "hourglass", str(self._machine))
        try:
            self.image.touch()
            os.truncate(self.image, IMAGE_BYTES)
            blocks = ("-b", str(PAGE_BYTES), "-J", f"size={JOURNAL_BYTES // MIB}")
            _tool("mkfs.ext4", "-q", "-F", *blocks, "-O", PAGE_BY_PAGE, str(self.image))
            self.mount()
        except BaseException:
            _tool("umount", str(self._machine))
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.root.is_mount():
                self.unmount()
        finally:
            _unmount(self._machine)

    def mount(self) -> None:
        """Have the file system again; after a power cut it replays its journal. The loop device is mount's own."""
        options = ",".join(filter(None, ("loop", self._options)))
        _tool("mount", "-t", "ext4", "-o", options, str(self.image), str(self.root))
        if self._room_bytes < IMAGE_BYTES:
            device = self.root.stat().st_dev
            Path(LONGEST_WRITE.format(os.major(device), os.minor(device))).write_text(str(PAGE_BYTES // 1024))

    def unmount(self) -> None:
        """Needs that no process has a file open there; frees the loop device with it."""
        _unmount(self.root)

    def give_room(self, room_bytes: int) -> None:
        """Let the file take so much memory from now on."""
        _tool("mount", "-o", f"remount,size={room_bytes}", str(self._machine))

    def cut_power(self) -> None:
        """From now on every access fails with EIO, and what is only in memory never gets to the file."""
        descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, EXT4_IOC_SHUTDOWN, struct.pack("=I", GOING_FLAGS_NOLOGFLUSH))
        finally:
            os.close(descriptor)

    def write_back_some(self, files: Iterable[Path], rng: Rng) -> None:
        """Bring a random half of the pages in memory to the image, as the kernel may at any moment."""
        for path in files:
            if path.is_file():
                self._write_back_pages(path, rng)

    def commit_journal(self) -> None:
        """Have everything that has been written back named by the file system, as it does every few seconds."""
        descriptor = os.open(self.root / "journal-commit", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            os.pwrite(descriptor, b"x", 0)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @staticmethod
    def dirty_pages(path: Path) -> int | None:
        """How many pages of the file are in memory only; None on a Linux that does not tell."""
        whole, counts = (ctypes.c_uint64 * 2)(0, 0), (ctypes.c_uint64 * 5)()
        descriptor = os.open(path, os.O_RDONLY)
        try:
            failed = _libc.syscall(CACHESTAT, descriptor, whole, counts, 0)
        finally:
            os.close(descriptor)
        return None if failed else int(counts[1] + counts[2])  # dirty, and on their way

    def keep(self, target: Path) -> Path:
        """A copy of the file for a person to look at; returns `target`."""
        _tool("cp", "--sparse=always", str(self.image), str(target))
        return target

    @staticmethod
    def _write_back_pages(path: Path, rng: Rng) -> None:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            for at in range(0, min(os.fstat(descriptor).st_size, WINDOW_BYTES), PAGE_BYTES):
                if rng.random() < 0.5 and _sync_file_range(descriptor, at, PAGE_BYTES, SYNC_RANGE_AND_WAIT):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number), str(path))
        finally:
            os.close(descriptor)


def _enter_own_mounts() -> None:
    """What is mounted from here on is seen by this thread, and by the threads and processes that it starts.

    Raises OSError.
    """
    for failed in (_libc.unshare(CLONE_NEWNS), _libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)):
        if failed:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def _unmount(target: Path) -> None:
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            _tool("umount", str(target))
        except subprocess.CalledProcessError as error:
            if error.returncode != EXIT_BUSY or time.monotonic() > deadline:
                raise
        else:
            return


def _tool(*command: str) -> None:
    """Run it. Raises CalledProcessError with what it said."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    environment = os.environ | {"PATH": path, "LC_ALL": "C"}
    try:
        subprocess.run(command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True, env=environment)
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise
