"""One fault of a store's files: a byte that is another one, or a sector that is an older or a neighbouring one.

Invariant: a fault changes one file, within one sector, and leaves its length as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flip_store import Image

from osenv import SeededRng, SimDisk

SECTOR_BYTES = 512


@dataclass(frozen=True)
class Fault:
    """`content` is what now stands at `at` of the file; `positions` are the bytes that differ from before."""

    path: Path
    at: int
    content: bytes
    positions: list[int]
    text: str

    def apply(self, disk: SimDisk) -> None:
        """Damage the disk."""
        disk.open(self.path).pwrite(self.content, self.at)


def flip(image: Image, path: Path, at: int, xor: int) -> Fault:
    """One byte, exclusive-or `xor`."""
    content = bytes((image.files[path][at] ^ xor,))
    return Fault(path, at, content, [at], f"{image.name}: {path}, byte {at} ^ 0x{xor:02X}")


def flip_number(image: Image, number: int, xor: int) -> Fault:
    """Byte `number` of all the bytes of all the files, in the order of their paths."""
    for path in sorted(image.files):
        size = len(image.files[path])
        if number < size:
            return flip(image, path, number, xor)
        number -= size
    raise IndexError(number)


def random_flip(image: Image, rng: SeededRng) -> Fault:
    """Half of the time any byte of the store, else any file and any byte of it: small files are as interesting."""
    xor = rng.randrange(1, 256)
    if rng.random() < 0.5:
        return flip_number(image, rng.randrange(0, byte_count(image)), xor)
    path = rng.choice(sorted(path for path, content in image.files.items() if content))
    return flip(image, path, rng.randrange(0, len(image.files[path])), xor)


def random_sector(image: Image, rng: SeededRng) -> Fault:
    """A sector as it was at an earlier moment (the write was lost), or that of another place (it went astray).

    Files of less than a sector, and states, are left alone: their older content is a version of its own, and whole.
    """
    paths = sorted(
        path
        for path, content in image.files.items()
        if len(content) >= SECTOR_BYTES and path.suffix not in (".json", ".bak")
    )
    while True:
        path = rng.choice(paths)
        content = image.files[path]
        sector = rng.randrange(0, len(content) // SECTOR_BYTES)
        at = sector * SECTOR_BYTES
        if rng.random() < 0.5:
            version = rng.choice(image.older).get(path, b"")
            other, what = version[at : at + SECTOR_BYTES].ljust(SECTOR_BYTES, b"\0"), "as it was before"
        else:
            source = rng.randrange(0, len(content) // SECTOR_BYTES)
            other, what = content[source * SECTOR_BYTES :][:SECTOR_BYTES], f"replaced by sector {source}"
        now = content[at : at + SECTOR_BYTES]
        if other != now:
            positions = [at + index for index in range(SECTOR_BYTES) if now[index] != other[index]]
            return Fault(path, at, other, positions, f"{image.name}: {path}, sector {sector} {what}")


def byte_count(image: Image) -> int:
    """Of all files."""
    return sum(map(len, image.files.values()))
