"""A run: a file of keys in ascending order that never changes, read block by block (FORMAT.md, "Timer").

A key is 16 bytes, due time (ms since 1970) and queue offset, so keys in the order of their bytes are in the order in
which messages are due, and messages that are due together in the order in which they were stored.

Invariants: keys ascend strictly through the whole file, and every block but the last one is full, so the key at any
place can be found without reading what is before it; bytes that do not prove themselves are never taken for keys.
"""

from __future__ import annotations

import errno
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

from osenv import Disk, DiskFile

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
    """One run, open for reading; its calls may block, and may come from any thread."""

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
