"""Simulated files and folders: as the operating system shows them, and as a power cut would leave them.

Invariants: `durable` of a file changes only by `sync`, that of a folder only when a change of names is settled; a
sector that is not in `dirty` never reaches `durable`; `bytes` are shared between copies and replaced on the first
write, a `bytearray` belongs to one inode alone; a change of names is kept whole or forgotten whole until a sync of one
of its folders settles that folder's side of it.

After a power cut, what was synced is in every state; a sector, a length and a change of names is there as before or as
after, nothing else; two states of one power cut differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from osenv.rng import Rng

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


class Folder:
    """Names to files and folders. Compared by identity."""

    __slots__ = ("durable", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


Node = Inode | Folder
Place = tuple[Folder, str]


@dataclass(frozen=True, slots=True)
class NameChange:
    """A created, removed or renamed file or folder whose names were not synced."""

    gone: Place | None
    added: Place | None
    node: Node

    def without(self, folder: Folder) -> NameChange | None:
        """What is left of the change when the names in `folder` are no longer in doubt."""
        gone, added = (None if place is None or place[0] is folder else place for place in (self.gone, self.added))
        return None if gone is added is None else NameChange(gone, added, self.node)

    def touches(self, folder: Folder) -> bool:
        """Whether a name in `folder` is part of the change."""
        return any(place is not None and place[0] is folder for place in (self.gone, self.added))

    def settle(self, folder: Folder) -> None:
        """Make this folder's side durable."""
        if self.gone is not None and self.gone[0] is folder:
            folder.durable.pop(self.gone[1], None)
        if self.added is not None and self.added[0] is folder:
            folder.durable[self.added[1]] = self.node


def nodes_of(root: Folder, changes: Iterable[NameChange]) -> list[Node]:
    """Everything that has a name now, or may have one after a power cut; each once, in an order that repeats."""
    found: dict[int, Node] = {}

    def visit(node: Node) -> None:
        if id(node) in found:
            return
        found[id(node)] = node
        if isinstance(node, Folder):
            for child in (*node.durable.values(), *node.entries.values()):
                visit(child)

    visit(root)
    for change in changes:
        visit(change.node)
        for folder in _folders(change):
            visit(folder)
    return list(found.values())


def copy_tree(root: Folder, changes: Iterable[NameChange]) -> tuple[Folder, list[NameChange]]:
    """An independent copy of the folders, files and changes; bytes are shared until one copy writes."""
    changes = list(changes)
    nodes = nodes_of(root, changes)
    copies = {id(node): Folder() if isinstance(node, Folder) else node.copy() for node in nodes}
    for node in nodes:
        if isinstance(node, Folder):
            copy = copies[id(node)]
            assert isinstance(copy, Folder)  # noqa: S101 - made so above
            copy.entries = {name: copies[id(child)] for name, child in node.entries.items()}
            copy.durable = {name: copies[id(child)] for name, child in node.durable.items()}

    def moved(place: Place | None) -> Place | None:
        if place is None:
            return None
        folder = copies[id(place[0])]
        assert isinstance(folder, Folder)  # noqa: S101 - made so above
        return folder, place[1]

    copied = [NameChange(moved(change.gone), moved(change.added), copies[id(change.node)]) for change in changes]
    top = copies[id(root)]
    assert isinstance(top, Folder)  # noqa: S101 - made so above
    return top, copied


def _folders(change: NameChange) -> Iterator[Folder]:
    for place in (change.gone, change.added):
        if place is not None:
            yield place[0]


class PowerCut:
    """The units in doubt at one moment: changes of names, then per file its length and its dirty sectors.

    A state is a number: bit k says that unit k got through. The tree that is given must not change any more.
    """

    def __init__(self, root: Folder, changes: Iterable[NameChange]) -> None:
        self._root, self._changes = root, list(changes)
        self._first_unit: dict[int, int] = {}  # by id of the inode
        self._sectors: dict[int, list[int]] = {}
        self._contents: dict[tuple[int, int], bytes] = {}
        self._same: dict[bytes, bytes] = {}
        self.units = len(self._changes)
        for node in nodes_of(root, self._changes):
            if isinstance(node, Inode):
                sectors = list(node.sectors_in_doubt())
                self._first_unit[id(node)], self._sectors[id(node)] = self.units, sectors
                self.units += node.length_in_doubt() + len(sectors)

    def numbers(self, rng: Rng, exhaustive_units_max: int, samples: int) -> Iterator[int]:
        """Which states to look at: nothing survives, everything survives, then all others or random ones."""
        count = 1 << self.units
        yield 0
        if count > 1:
            yield count - 1
        if self.units <= exhaustive_units_max:
            yield from range(1, count - 1)
            return
        for _ in range(samples - 2):
            number = rng.randrange(0, count)
            # A third of the states lost nearly everything, a third nearly nothing: that is where neighbours part.
            match rng.randrange(0, 3):
                case 0:
                    number &= rng.randrange(0, count) & rng.randrange(0, count)
                case 1:
                    number |= rng.randrange(0, count) | rng.randrange(0, count)
            yield number

    def trees(self, numbers: Iterable[int]) -> Iterator[Folder]:
        """The disks of these states, each different one once."""
        seen: set[tuple[object, ...]] = set()
        for number in numbers:
            tree, key = self.tree(number)
            if key not in seen:
                seen.add(key)
                yield tree

    def tree(self, number: int) -> tuple[Folder, tuple[object, ...]]:
        """The disk of one state, and what tells it from others. Everything on it is durable."""
        names: dict[int, dict[str, Node]] = {}
        for unit, change in enumerate(self._changes):
            if number >> unit & 1:
                for place, node in ((change.gone, None), (change.added, change.node)):
                    if place is not None:
                        entries = names.setdefault(id(place[0]), dict(place[0].durable))
                        if node is None:
                            entries.pop(place[1], None)
                        else:
                            entries[place[1]] = node
        key: list[object] = []
        copies: dict[int, Node] = {}

        def survivor(node: Node) -> Node:
            copy = copies.get(id(node))
            if copy is None and isinstance(node, Inode):
                content = self._content(node, number)
                copy = Inode(content, content)
            elif copy is None and isinstance(node, Folder):
                copy = Folder()
                for name, child in names.get(id(node), node.durable).items():
                    key.append(name)
                    copy.entries[name] = survivor(child)
                copy.durable = dict(copy.entries)
            assert copy is not None  # noqa: S101 - a node is one of the two
            key.append(copy.content if isinstance(copy, Inode) else None)
            return copies.setdefault(id(node), copy)

        top = survivor(self._root)
        assert isinstance(top, Folder)  # noqa: S101 - the root is one
        return top, tuple(key)

    def _content(self, inode: Inode, number: int) -> bytes:
        sectors, length = self._sectors[id(inode)], inode.length_in_doubt()
        own = number >> self._first_unit[id(inode)] & (1 << len(sectors) + length) - 1
        content = self._contents.get((id(inode), own))
        if content is None:
            kept = [sector for bit, sector in enumerate(sectors, length) if own >> bit & 1]
            content = inode.remains(kept, new_length=length and bool(own & 1))
            content = self._contents[id(inode), own] = self._same.setdefault(content, content)
        return content
