"""A disk in memory that can lose power: what was not synced may be gone, in any subset of 512-byte sectors.

Invariants: `sync_data` moves exactly the file's own content to what survives; `sync_dir` moves exactly the folder's own
names; a crash keeps all of what survives, and of the rest whatever the random numbers say: any sectors, and any changes
of names, a rename being one change. Folders themselves survive always.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from osenv.rng import Rng

P = ParamSpec("P")
T = TypeVar("T")

SECTOR_BYTES = 512


@dataclass
class _Inode:
    """One file's content: as the operating system shows it, and as a power cut would leave it."""

    content: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    dirty: set[int] = field(default_factory=set)  # sectors of `content` that differ from `durable`

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        end = offset + len(data)
        if end > len(self.content):
            self.resize(end)
        self.content[offset:end] = data
        self.dirty.update(range(offset // SECTOR_BYTES, -(-end // SECTOR_BYTES)))

    def resize(self, size: int) -> None:
        before = len(self.content)
        if size < before:
            del self.content[size:]
        else:
            self.content.extend(bytes(size - before))
        low, high = sorted((before, size))
        self.dirty.update(range(low // SECTOR_BYTES, -(-high // SECTOR_BYTES)))

    def sync(self) -> None:
        self.durable = bytes(self.content)
        self.dirty.clear()

    def lose_power(self, rng: Rng) -> None:
        survived = bytearray(self.durable)
        if len(self.content) != len(survived) and rng.random() < 0.5:  # the new length may have reached the disk
            size = len(self.content)
            survived = survived[:size] + bytes(max(0, size - len(survived)))
        for sector in sorted(self.dirty):
            start = sector * SECTOR_BYTES
            if start < len(survived) and rng.random() < 0.5:
                new = self.content[start : start + SECTOR_BYTES][: len(survived) - start]
                survived[start : start + len(new)] = new
        self.content = survived
        self.sync()


class _SimFile:
    def __init__(self, disk: SimDisk, inode: _Inode) -> None:
        self._disk, self._inode = disk, inode
        self._generation = disk.generation
        self._closed = False

    def pread(self, length: int, offset: int) -> bytes:
        return bytes(self._alive("pread").content[offset : offset + length])

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._alive("pwrite").write(data, offset)
        self._disk.after("pwrite")

    def sync_data(self) -> None:
        self._alive("sync_data").sync()
        self._disk.after("sync_data")

    def allocate(self, offset: int, length: int) -> None:
        inode = self._alive("allocate")
        if offset + length > len(inode.content):
            inode.resize(offset + length)

    def truncate(self, size: int) -> None:
        self._alive("truncate").resize(size)

    def size(self) -> int:
        return len(self._alive("size").content)

    def close(self) -> None:
        self._closed = True

    def _alive(self, call: str) -> _Inode:
        if self._closed:
            raise OSError(errno.EBADF, "this file is closed")
        if self._generation != self._disk.generation:
            raise OSError(errno.EBADF, "this file was open when the power went")
        self._disk.before(call)
        return self._inode


class _SimLock:
    def __init__(self, disk: SimDisk, path: Path) -> None:
        self._disk, self._path = disk, path
        self._generation = disk.generation

    def release(self) -> None:
        if self._generation == self._disk.generation:  # else it went with its process, and may have a new holder
            self._disk.locks.discard(self._path)


@dataclass(frozen=True)
class _NameChange:
    """A created, removed or renamed file that was not synced: a crash keeps the change whole or forgets it."""

    gone: Path | None
    added: Path | None
    inode: _Inode

    def apply(self, names: dict[Path, _Inode]) -> None:
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.added is not None:
            names[self.added] = self.inode

    def without(self, is_settled: Callable[[Path], bool]) -> _NameChange | None:
        """What is left of the change when the names that `is_settled` picks are no longer in doubt."""
        gone, added = (None if path is None or is_settled(path) else path for path in (self.gone, self.added))
        return None if gone is added is None else _NameChange(gone, added, self.inode)


class SimDisk:
    """Implements `osenv.Disk` in memory.

    `after` is called when a write or a sync has taken effect: an OSError there comes too late to undo it.
    `before` is called with the name of each call on an open file before it takes effect; a test may raise OSError
    there.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.locks: set[Path] = set()
        self.before: Callable[[str], None] = lambda _call: None
        self.after: Callable[[str], None] = lambda _call: None
        self._names: dict[Path, _Inode] = {}
        self._durable_names: dict[Path, _Inode] = {}
        self._changes: list[_NameChange] = []  # from the durable names to the names, oldest first
        self._folders: set[Path] = {Path("/")}

    def open(self, path: Path, *, create: bool = False) -> _SimFile:
        if path in self._folders:
            raise IsADirectoryError(errno.EISDIR, "this is a folder", str(path))
        inode = self._names.get(path)
        if inode is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            self._check_folder(path.parent)
            inode = _Inode()
            self._change(None, path, inode)
        return _SimFile(self, inode)

    def exists(self, path: Path) -> bool:
        return path in self._names or path in self._folders

    def list_dir(self, path: Path) -> list[str]:
        return sorted(child.name for child in {*self._names, *self._folders} if child.parent == path and child != path)

    def make_dirs(self, path: Path) -> None:
        self._folders.update((path, *path.parents))

    def replace(self, source: Path, target: Path) -> None:
        self._check_folder(target.parent)
        self._change(source, target, self._inode(source))

    def unlink(self, path: Path) -> None:
        self._change(path, None, self._inode(path))

    def sync_dir(self, path: Path) -> None:
        self._check_folder(path)
        for known in [name for name in self._durable_names if name.parent == path]:
            del self._durable_names[known]
        self._durable_names.update({name: inode for name, inode in self._names.items() if name.parent == path})
        self._settle(lambda name: name.parent == path)

    def lock(self, path: Path) -> _SimLock:
        if path in self.locks:
            raise BlockingIOError(errno.EAGAIN, "locked by another holder", str(path))
        self.open(path, create=True)
        self.locks.add(path)
        return _SimLock(self, path)

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return call(*args, **kwargs)

    def remove_tree(self, path: Path) -> None:
        """What `rm -r` would do: the names below `path` are gone, durably."""
        for names in (self._names, self._durable_names):
            for name in [name for name in names if path in (name, *name.parents)]:
                del names[name]
        self._settle(lambda name: path in (name, *name.parents))
        self._folders -= {folder for folder in self._folders if path in (folder, *folder.parents)}

    def kill(self) -> None:
        """The process dies: open files and locks are gone, what was written stays (the page cache outlives us)."""
        self.generation += 1
        self.locks.clear()

    def crash(self, rng: Rng) -> None:
        """The power goes: of what was not synced, a random subset of sectors and of names survives."""
        self.kill()
        names = dict(self._durable_names)
        for change in self._changes:
            if rng.random() < 0.5:
                change.apply(names)
        self._changes.clear()
        for inode in {id(inode): inode for inode in names.values()}.values():
            inode.lose_power(rng)
        self._names, self._durable_names = names, dict(names)

    def _change(self, gone: Path | None, added: Path | None, inode: _Inode) -> None:
        change = _NameChange(gone, added, inode)
        change.apply(self._names)
        self._changes.append(change)

    def _settle(self, is_settled: Callable[[Path], bool]) -> None:
        self._changes = [rest for change in self._changes if (rest := change.without(is_settled)) is not None]

    def _inode(self, path: Path) -> _Inode:
        try:
            return self._names[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, "no such file", str(path)) from None

    def _check_folder(self, path: Path) -> None:
        if path not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder", str(path))
