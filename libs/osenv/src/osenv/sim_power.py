"""Everything that a power cut at one moment could leave behind.

Invariants: what was synced is in every state; a sector, a length and a change of names is there as before or as after,
nothing else; two states of one power cut differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from osenv.rng import Rng
from osenv.sim_folder import Folder, NameChange, Node, nodes_of
from osenv.sim_inode import Inode


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
