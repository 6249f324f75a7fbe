"""One simulated file: its content as the operating system shows it, and as a power cut would leave it.

Invariants: `durable` changes only by `sync`; a sector that is not in `dirty` never reaches `durable`; `bytes` are
shared between copies and replaced on the first write, a `bytearray` belongs to one inode alone.
"""

from __future__ import annotations

from collections.abc import Iterator

SECTOR_BYTES = 512


class Inode:
    """Content, what of it survives for certain, and which 512-byte sectors are on their way there."""

    __slots__ = ("content", "dirty", "durable", "length_dirty")

    def __init__(
        self,
        content: bytes | bytearray = b"",
        durable: bytes | bytearray = b"",
        dirty: set[int] | None = None,
        length_dirty: bool = False,
    ) -> None:
        self.content, self.durable = content, durable
        self.dirty = set() if dirty is None else dirty
        self.length_dirty = length_dirty

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Put `data` at `offset`, growing the file if need be; nothing is durable yet."""
        if not len(data):
            return
        end = offset + len(data)
        if end > len(self.content):
            self.resize(end)
        self._writable()[offset:end] = data
        self.dirty.update(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)))
        if end > len(self.durable):  # also when a failed sync has dropped the length that was there before
            self.length_dirty = True

    def resize(self, size: int) -> None:
        """Cut the content, or grow it with zeros."""
        before = len(self.content)
        if size == before:
            return
        content = self._writable()
        if size < before:
            del content[size:]
        else:
            content.extend(bytes(size - before))
            # Zeros behind the durable end need no writing; in its place they have to replace what stands there.
            stale_end = min(size, len(self.durable))
            if before < stale_end:
                self.dirty.update(range(before // SECTOR_BYTES, -(-stale_end // SECTOR_BYTES)))
        self.length_dirty = True

    def sync(self) -> None:
        """Make the length and the dirty sectors durable; what a failed sync has dropped is not among them."""
        if not self.dirty and not self.length_dirty:
            return
        durable = self.durable = bytearray(self.durable)
        if self.length_dirty:
            _set_length(durable, len(self.content))
        for sector in self.dirty:
            _copy_sector(self.content, durable, sector)
        self.drop()

    def drop(self) -> None:
        """A sync has failed: the operating system calls every page clean, and forgets to write it."""
        self.dirty.clear()
        self.length_dirty = False

    def copy(self) -> Inode:
        """An independent inode; the bytes are shared until one of the two writes."""
        self.content, self.durable = bytes(self.content), bytes(self.durable)
        return Inode(self.content, self.durable, set(self.dirty), self.length_dirty)

    def sectors_in_doubt(self) -> Iterator[int]:
        """The dirty sectors whose loss would show, in their order."""
        for sector in sorted(self.dirty):
            if sector * SECTOR_BYTES < len(self.content) and _sector(self.content, sector) != _sector(
                self.durable, sector
            ):
                yield sector

    def length_in_doubt(self) -> bool:
        """Whether a power cut may leave the length before."""
        return self.length_dirty and len(self.content) != len(self.durable)

    def remains(self, sectors: list[int], *, new_length: bool) -> bytes:
        """What a power cut leaves when of everything in doubt these sectors, and perhaps the length, got through."""
        rest = bytearray(self.durable)
        if new_length:
            _set_length(rest, len(self.content))
        for sector in sectors:
            _copy_sector(self.content, rest, sector)
        return bytes(rest)

    def _writable(self) -> bytearray:
        if not isinstance(self.content, bytearray):
            self.content = bytearray(self.content)
        return self.content


def _set_length(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def _sector(data: bytes | bytearray, sector: int) -> bytes:
    """As it goes to the disk: whole, with zeros behind the end of the file."""
    start = sector * SECTOR_BYTES
    return bytes(data[start : start + SECTOR_BYTES]).ljust(SECTOR_BYTES, b"\0")


def _copy_sector(source: bytes | bytearray, target: bytearray, sector: int) -> None:
    """As much of the sector as `target` has room for; nothing of one that was cut off."""
    start = sector * SECTOR_BYTES
    end = min(start + SECTOR_BYTES, len(target))
    if start < end and start < len(source):
        target[start:end] = _sector(source, sector)[: end - start]
