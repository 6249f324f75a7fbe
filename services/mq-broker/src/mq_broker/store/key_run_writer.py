"""Writing a run: blocks as their keys come, nothing of it visible to anybody before it is durable.

Invariant: a run that was not finished is not left behind, unless the disk refuses even that.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from mq_broker.store.durability import uninterrupted
from mq_broker.store.key_run import BLOCK_BYTES, BLOCK_KEYS, KeyRun, encode_blocks, run_name
from osenv import Disk, DiskFile

log = logging.getLogger(__name__)

WRITE_KEYS = 8 * BLOCK_KEYS
# Synced after so many blocks: the log's own syncs wait for no more than 4 MiB of ours.
SYNC_BLOCKS = 1_024


class RunWriter:
    """One run that is being written. I/O runs in threads, one call at a time; encoding runs on the event loop."""

    def __init__(self, disk: Disk, folder: Path, number: int) -> None:
        self._disk, self._folder, self._number = disk, folder, number
        self._pending: list[bytes] = []  # fewer than `WRITE_KEYS`, between two calls
        self._blocks = 0
        self._unsynced = 0
        self._file: DiskFile | None = None
        self._run: KeyRun | None = None

    async def write(self, keys: Sequence[bytes]) -> None:
        """Append keys, which are larger than all before. Raises OSError."""
        self._pending += keys
        while len(self._pending) >= WRITE_KEYS:
            data = encode_blocks(self._number, self._blocks, self._pending[:WRITE_KEYS])
            del self._pending[:WRITE_KEYS]
            await uninterrupted(self._disk.offload(self._append, data))

    async def finish(self) -> KeyRun | None:
        """The run, durable but for its name; None when it got no key. Raises OSError, SyncError."""
        data = encode_blocks(self._number, self._blocks, self._pending)
        self._pending.clear()
        if self._blocks or data:
            await uninterrupted(self._disk.offload(self._finish, data))
        return self._run

    async def discard(self) -> None:
        """Nobody needs the run."""
        await uninterrupted(self._disk.offload(self._discard))

    def _append(self, data: bytes) -> None:
        if self._file is None:
            self._file = self._disk.open(self._folder / run_name(self._number), create=True)
        self._file.pwrite(data, self._blocks * BLOCK_BYTES)
        count = len(data) // BLOCK_BYTES
        self._blocks += count
        self._unsynced += count
        if self._unsynced >= SYNC_BLOCKS:
            self._sync(self._file)

    def _finish(self, data: bytes) -> None:
        if data:
            self._append(data)
        assert self._file is not None  # noqa: S101 - something was appended
        if self._unsynced:
            self._sync(self._file)
        self._run = KeyRun(self._disk, self._folder, self._number, self._blocks)
        self._file.close()
        self._file = None

    def _sync(self, file: DiskFile) -> None:
        file.sync_data()
        self._unsynced = 0

    def _discard(self) -> None:
        for file in (self._file, self._run):
            if file is not None:
                file.close()
        path = self._folder / run_name(self._number)
        try:
            if self._disk.exists(path):
                self._disk.unlink(path)
        except OSError as error:
            log.warning("%s could not be deleted, the next start will try again: %s", path, error)
