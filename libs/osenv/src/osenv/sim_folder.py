"""Simulated folders: names as the operating system shows them, and as a power cut would leave them.

Invariants: `durable` changes only when a change of names is settled; a change is kept whole or forgotten whole until a
sync of one of its folders settles that folder's side of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from osenv.sim_inode import Inode


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
    """An independent copy of the folders, files and changes; bytes are shared until somebody writes."""
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
