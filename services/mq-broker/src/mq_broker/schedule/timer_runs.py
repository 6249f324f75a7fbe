"""Runs of the index of due times: files of keys in ascending order that never change (FORMAT.md, "Timer")."""

from __future__ import annotations

import errno
import logging
import struct
import zlib
from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mq_broker.store.durability import finish_despite_cancellation
from mq_broker.store.state_files import encode_document, read_document, write_document
from osenv import Disk, DiskFile

log = logging.getLogger(__name__)

FAN_IN = 8  # runs that become one


class TimerRuns:
    """The files below one folder, each with the place where it is being read.

    Invariants: a number is given once; a file is deleted only after a manifest without it is durable, or with all of
    them.
    """

    def __init__(self, disk: Disk, folder: Path, run_keys: int) -> None:
        """`run_keys` is how many keys a run has that was not merged."""
        self._disk, self._folder = disk, folder
        self._first_tier_blocks = max(1, run_keys // BLOCK_KEYS)
        self._last_number = 0
        self._retired: list[KeyRun] = []
        self.readers: list[RunReader] = []

    def open(self, manifest: Manifest) -> None:
        """Take over these runs; may block. Raises DamagedRunError, OSError."""
        for entry in manifest.runs:
            run = KeyRun(self._disk, self._folder, entry.number, entry.blocks)
            try:
                self.readers.append(RunReader.open(run, entry.from_block))
            except BaseException:
                run.close()
                raise

    def clear(self) -> None:
        """Give all files back."""
        for run in [*(reader.run for reader in self.readers), *self._retired]:
            run.close()
        self.readers, self._retired = [], []

    def delete_unnamed(self, manifest: Manifest | None) -> None:
        """Remove what the manifest does not name, without one everything of ours; may block. Raises OSError."""
        kept = {run_name(entry.number) for entry in manifest.runs} | {MANIFEST_NAME} if manifest else set()
        for name in self._disk.list_dir(self._folder):
            number = run_number(name)
            self._last_number = max(self._last_number, number or 0)
            if name not in kept and (number is not None or name.startswith(MANIFEST_NAME)):
                self._disk.unlink(self._folder / name)

    def next_number(self) -> int:
        """For a new run."""
        self._last_number += 1
        return self._last_number

    def entries(self) -> tuple[RunEntry, ...]:
        """What a manifest says of them; runs that were read to their end are left out."""
        return tuple(
            RunEntry(reader.run.number, reader.run.blocks, reader.block)
            for reader in self.readers
            if reader.head is not None
        )

    def to_merge(self) -> list[RunReader]:
        """Runs of about the same size of which there are enough to make one of them; empty when there are none."""
        tiers: dict[int, list[RunReader]] = {}
        for reader in self.readers:
            tiers.setdefault(self._tier(reader), []).append(reader)
        return next((tiers[tier][:FAN_IN] for tier in sorted(tiers) if len(tiers[tier]) >= FAN_IN), [])

    def replace(self, readers: Collection[RunReader], by: RunReader | None) -> None:
        """From now on `by` is read in the place of these, which retire."""
        self._retired += [reader.run for reader in readers]
        self.readers = [reader for reader in self.readers if reader not in readers]
        if by is not None:
            self.readers.append(by)

    def retire_spent(self, keep: Collection[RunReader]) -> None:
        """Runs that were read to their end retire, but for those in `keep`, which a merge still reads."""
        self.replace([reader for reader in self.readers if reader.head is None and reader not in keep], None)

    def retire(self, run: KeyRun) -> None:
        """Retire this run: it has no reader."""
        self._retired.append(run)

    async def fetch(self, readers: Sequence[RunReader]) -> None:
        """Have a block in these readers, which are dry. Raises DamagedRunError, OSError."""

        def fetch_all() -> list[list[bytes]]:
            return [reader.fetch() for reader in readers]

        blocks = await finish_despite_cancellation(self._disk.offload(fetch_all))
        for reader, keys in zip(readers, blocks, strict=True):
            reader.give(keys)

    @property
    def retired(self) -> list[KeyRun]:
        """Runs that are not read any more; `delete` may have them once a manifest without them is durable."""
        return self._retired[:]

    async def delete(self, runs: Sequence[KeyRun]) -> None:
        """Give these files back and remove them."""
        self._retired = [run for run in self._retired if run not in runs]
        for run in runs:
            run.close()

        def unlink_all() -> None:
            for run in runs:
                try:
                    self._disk.unlink(run.path)
                except OSError as error:
                    log.warning("%s could not be deleted, the next start will try again: %s", run.path, error)

        if runs:
            await finish_despite_cancellation(self._disk.offload(unlink_all))

    def _tier(self, reader: RunReader) -> int:
        blocks = reader.run.blocks - reader.block
        # Half of what it could be: a run that was merged has risen, though what was done was left out.
        tier, limit = 0, self._first_tier_blocks * FAN_IN // 2
        while blocks >= limit:
            tier, limit = tier + 1, limit * FAN_IN
        return tier


# What the index of due times consists of: `runs.json`, which is replaced as a whole (FORMAT.md, "Timer").
#
# Invariant: every waiting message below `covered` that is not done has its key in one of these runs, in `from_block` or
# behind it.

MANIFEST_NAME = "runs.json"


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run: its number, its length in blocks, and the first block that is still needed."""

    number: int
    blocks: int
    from_block: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """The runs, and the queue offset behind what they tell of."""

    covered: int = 0
    runs: tuple[RunEntry, ...] = ()
    moved: bool = (
        False  # some keys are later than the due times, because two clocks differed; no later start can use it
    )


def encode_manifest(manifest: Manifest, log_offset: int) -> bytes:
    """The file's bytes; the log was durable up to `log_offset` before this was written."""
    runs = [{"number": run.number, "blocks": run.blocks, "fromBlock": run.from_block} for run in manifest.runs]
    moved = {"moved": True} if manifest.moved else {}
    return encode_document({"queueOffset": manifest.covered, "runs": runs, **moved}, log_offset)


def decode_manifest(document: dict[str, Any]) -> Manifest:
    """The inverse. Raises ValueError when the document is not of this form."""
    try:
        covered = document["queueOffset"]
        runs = tuple(RunEntry(run["number"], run["blocks"], run["fromBlock"]) for run in document["runs"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"not of the form it should have: {error!r}") from error
    numbers = [covered, *(number for run in runs for number in (run.number, run.blocks, run.from_block))]
    if any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("holds something else where a number of 0 or more belongs")
    if any(run.from_block >= run.blocks for run in runs) or len({run.number for run in runs}) != len(runs):
        raise ValueError("names a run twice, or a block behind the last one")
    return Manifest(covered, runs, document.get("moved", False) is True)


def read_manifest(disk: Disk, folder: Path) -> Manifest | None:
    """None when it is missing or damaged. Raises ValueError when it is not of the form it should have, OSError."""
    document = read_document(disk, folder / MANIFEST_NAME)
    return None if document is None else decode_manifest(document)


def write_manifest(disk: Disk, folder: Path, manifest: Manifest, log_offset: int) -> None:
    """Durable on return. There is no version before it: what that named is deleted. Raises OSError, SyncError."""
    write_document(disk, folder / MANIFEST_NAME, encode_manifest(manifest, log_offset), keep_previous=False)


class RunReader:
    """Where a run is being read: one block of its keys in memory, and the number of the block behind it.

    Keys in order, read from the front; when the block is used up the next one has to be fetched and given.

    Invariant: every key before this place has been popped, so it is done, in memory again, or in its taker's hands.
    """

    def __init__(self, run: KeyRun, block: int, keys: list[bytes], at: int = 0) -> None:
        """`keys` is the content of `block`; the next key is number `at` of it."""
        self.run, self.next_block = run, block + 1
        self._keys, self._at = keys, at

    @classmethod
    def open(cls, run: KeyRun, block: int) -> RunReader:
        """At the beginning of a block, which must be there. May block; raises DamagedRunError, OSError."""
        return cls(run, block, run.read(block))

    @classmethod
    def seek(cls, run: KeyRun, key: bytes) -> RunReader | None:
        """At `key` or the first one behind it; None when there is none. May block; raises likewise."""
        block = run.find(key)
        if block == run.blocks:
            return None
        keys = run.read(block)
        return cls(run, block, keys, bisect_left(keys, key))

    @property
    def head(self) -> bytes | None:
        """The next key; of a reader that `is_dry` one that is not larger; None at the end of the run."""
        if self._at < len(self._keys):
            return self._keys[self._at]
        return self._keys[-1] if self.is_dry else None

    def pop(self) -> None:
        """Go on to the key behind the head; not while `is_dry`."""
        self._at += 1

    @property
    def is_dry(self) -> bool:
        """Whether the next block has to be fetched first."""
        return self._at >= len(self._keys) and self.next_block < self.run.blocks

    @property
    def rest(self) -> list[bytes]:
        """What is left of the block in memory."""
        return self._keys[self._at :]

    @property
    def block(self) -> int:
        """The block of the next key; the number of blocks at the end of the run."""
        return self.next_block - (self._at < len(self._keys))

    def fetch(self) -> list[bytes]:
        """The next block's keys. May block; raises DamagedRunError, OSError."""
        return self.run.read(self.next_block)

    def give(self, keys: list[bytes]) -> None:
        """What `fetch` has found."""
        self._keys, self._at = keys, 0
        self.next_block += 1


KEY = struct.Struct(">QQ")  # due time in ms, queue offset
BLOCK_BYTES = 4_096
BLOCK_HEAD = struct.Struct(">IIII")  # number of the run, number of the block, count of keys, CRC-32 of all the rest
BLOCK_KEYS = (BLOCK_BYTES - BLOCK_HEAD.size) // KEY.size
NAME_DIGITS = 10
_CRC_AT = 12


class DamagedRunError(Exception):
    """A run is not what was written; what it held can be told again by the consume queue."""

    def __init__(self, path: Path, fault: str, block: int | None = None) -> None:
        super().__init__(f"{path}: {fault}" if block is None else f"{path}, block {block}: {fault}")
        self.path, self.block = path, block


def run_name(number: int) -> str:
    """The file's name."""
    return f"{number:0{NAME_DIGITS}d}"


def run_number(name: str) -> int | None:
    """The inverse; None for a name that no run has."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdigit() else None


def encode_blocks(run: int, first_block: int, keys: Sequence[bytes]) -> bytes:
    """The keys as blocks, of which the first has this number. Only the last block of a run may be less than full."""
    blocks = []
    for at in range(0, len(keys), BLOCK_KEYS):
        part = keys[at : at + BLOCK_KEYS]
        number = first_block + at // BLOCK_KEYS
        content = b"".join(part).ljust(BLOCK_BYTES - BLOCK_HEAD.size, b"\0")
        head = BLOCK_HEAD.pack(run, number, len(part), 0)[:_CRC_AT]
        blocks.append(head + zlib.crc32(content, zlib.crc32(head)).to_bytes(4, "big") + content)
    return b"".join(blocks)


class KeyRun:
    """A run: a file of keys in ascending order that never changes, read block by block (FORMAT.md, "Timer").

    Open for reading; its calls may block, and may come from any thread.

    A key is 16 bytes, due time (ms since 1970) and queue offset, so keys in the order of their bytes are in the order
    in which messages are due, and messages that are due together in the order in which they were stored.

    Invariants: keys ascend strictly through the whole file, and every block but the last one is full, so the key at any
    place can be found without reading what is before it; bytes that do not prove themselves are never taken for keys.
    """

    def __init__(self, disk: Disk, folder: Path, number: int, blocks: int) -> None:
        """Raises DamagedRunError when there is no file of this length, OSError."""
        self.path, self.number, self.blocks = folder / run_name(number), number, blocks
        try:
            self._file: DiskFile = disk.open(self.path, read_only=True)
        except FileNotFoundError:
            raise DamagedRunError(self.path, "the file is missing") from None
        size = self._file.size()
        if size != blocks * BLOCK_BYTES:
            self._file.close()
            raise DamagedRunError(self.path, f"{size} bytes long, not {blocks * BLOCK_BYTES}")

    def read(self, block: int) -> list[bytes]:
        """The keys of one block. Raises DamagedRunError, also when the disk has lost that place; OSError."""
        try:
            data = self._file.pread(BLOCK_BYTES, block * BLOCK_BYTES)
        except OSError as error:
            if error.errno == errno.EIO:
                raise DamagedRunError(self.path, f"cannot be read: {error}", block) from error
            raise
        if len(data) != BLOCK_BYTES:
            raise DamagedRunError(self.path, f"{len(data)} bytes long, not {BLOCK_BYTES}", block)
        run, number, count, crc = BLOCK_HEAD.unpack_from(data)
        content = memoryview(data)[BLOCK_HEAD.size :]
        if zlib.crc32(content, zlib.crc32(data[:_CRC_AT])) != crc:
            raise DamagedRunError(self.path, "the CRC does not match", block)
        if (run, number) != (self.number, block):
            raise DamagedRunError(self.path, f"says that it is block {number} of run {run}", block)
        if not (count == BLOCK_KEYS or (0 < count < BLOCK_KEYS and block == self.blocks - 1)):
            raise DamagedRunError(self.path, f"holds {count} keys; only the last block may hold fewer than 255", block)
        return [data[at : at + KEY.size] for at in range(BLOCK_HEAD.size, BLOCK_HEAD.size + count * KEY.size, KEY.size)]

    def find(self, key: bytes) -> int:
        """The first block that holds `key` or a later one; `blocks` when there is none. Raises as `read` does."""
        low, high = 0, self.blocks
        while low < high:
            middle = (low + high) // 2
            if self.read(middle)[-1] < key:
                low = middle + 1
            else:
                high = middle
        return low

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


WRITE_KEYS = 8 * BLOCK_KEYS
# Synced after so many blocks: the log's own syncs wait for no more than 4 MiB of ours.
SYNC_BLOCKS = 1_024


class RunWriter:
    """Writing a run: blocks as their keys come, nothing of it visible before it is durable.

    I/O runs in threads, one call at a time; encoding runs on the event loop.

    Invariant: a run that was not finished is not left behind, unless the disk rejects even that.
    """

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
            await finish_despite_cancellation(self._disk.offload(self._append, data))

    async def finish(self) -> KeyRun | None:
        """The run, durable but for its name; None when it got no key. Raises OSError, SyncError."""
        data = encode_blocks(self._number, self._blocks, self._pending)
        self._pending.clear()
        if self._blocks or data:
            await finish_despite_cancellation(self._disk.offload(self._finish, data))
        return self._run

    async def discard(self) -> None:
        """Remove the run."""
        await finish_despite_cancellation(self._disk.offload(self._discard))

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
