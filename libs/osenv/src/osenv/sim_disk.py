"""A disk in memory that can fail and lose power: what was not synced may be gone, in any subset of 512-byte sectors.

Invariants: `sync_data` moves exactly the file's own content to what survives; `sync_dir` moves exactly the folder's own
names, folders being names too; a crash keeps all of what survives, and of the rest whatever the random numbers say: any
sectors, and any changes of names, a rename being one change. A folder that is lost takes with it what is in it. The
root folder is there always.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import ParamSpec, TypeVar

from osenv.disk import DiskUsage, Lane, SyncError
from osenv.rng import Rng
from osenv.sim_files import SECTOR_BYTES, Folder, Inode, NameChange, Node, Place, PowerCut, copy_tree, nodes_of

__all__ = ["SECTOR_BYTES", "ShortWriteError", "SimDisk"]

P = ParamSpec("P")
T = TypeVar("T")
Hook = Callable[[str, Path], None]
_boots = count(1)  # of the machines that disks are in; a power cut begins another one


class ShortWriteError(OSError):
    """Raised by a `before` hook of `pwrite`: the first `written` bytes arrive, then this error does."""

    def __init__(self, number: int, text: str, written: int) -> None:
        super().__init__(number, text)
        self.written = written


class _SimFile:
    def __init__(self, disk: SimDisk, path: Path, inode: Inode, *, read_only: bool) -> None:
        self._disk, self._path, self._inode, self._read_only = disk, path, inode, read_only
        self._generation = disk.generation
        self._closed = False

    def pread(self, length: int, offset: int) -> bytes:
        self._check_alive()
        disk = self._disk  # without the context manager: simulations read far more than they do anything else
        disk.before("pread", self._path)
        data = bytes(self._inode.content[offset : offset + length])
        disk.after("pread", self._path)
        return data

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        self._check_writable(errno.EBADF)
        try:
            with self._call("pwrite"):
                self._inode.write(data, offset)
        except ShortWriteError as error:
            self._inode.write(memoryview(data)[: error.written], offset)
            raise

    def sync_data(self) -> None:
        with _sync_errors(self._inode.drop), self._call("sync_data"):
            self._inode.sync()

    def allocate(self, offset: int, length: int) -> None:
        self._check_writable(errno.EBADF)
        with self._call("allocate"):
            if offset + length > len(self._inode.content):
                self._inode.resize(offset + length)

    def truncate(self, size: int) -> None:
        self._check_writable(errno.EINVAL)
        with self._call("truncate"):
            self._inode.resize(size)

    def size(self) -> int:
        with self._call("size"):
            return len(self._inode.content)

    def close(self) -> None:
        self._closed = True

    def _call(self, call: str) -> _Call:
        self._check_alive()
        return _Call(self._disk, call, self._path)

    def _check_writable(self, number: int) -> None:
        self._check_alive()
        if self._read_only:
            raise OSError(number, "this file was opened for reading only", str(self._path))

    def _check_alive(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, "this file is closed", str(self._path))
        if self._generation != self._disk.generation:
            raise OSError(errno.EBADF, "this file was open when the power went", str(self._path))


class _SimLock:
    def __init__(self, disk: SimDisk, path: Path) -> None:
        self._disk, self._path = disk, path
        self._generation = disk.generation

    def release(self) -> None:
        if self._generation == self._disk.generation:  # else it went with its process, and may have a new holder
            self._disk.locks.discard(self._path)


class _Call:
    """One call between its two hooks; the second one is left out when the call fails."""

    __slots__ = ("_call", "_disk", "_path")

    def __init__(self, disk: SimDisk, call: str, path: Path) -> None:
        self._disk, self._call, self._path = disk, call, path

    def __enter__(self) -> None:
        self._disk.before(self._call, self._path)

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is None:
            self._disk.after(self._call, self._path)


@contextmanager
def _sync_errors(drop: Callable[[], None]) -> Iterator[None]:
    """What a hook raises is a failed sync."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        drop()
        raise SyncError(error.errno, error.strerror) from error


class SimDisk:
    """Implements `osenv.Disk` in memory.

    `before` and `after` are called around every method of the disk and of its files that may touch the disk, but for
    `close`, with the method's name and the path (of `replace`, the target). An OSError from `before` means that the
    call did not happen, with two exceptions. In `sync_data` and `sync_dir` it becomes a SyncError, and what was to be
    synced is marked clean and dropped: reads still see it, a later sync reports success, a crash loses it. In `pwrite`
    a ShortWriteError lets the first bytes arrive. An OSError from `after` comes too late to undo the call.

    `used_share` and `free_bytes` are what `usage` returns. `locks` holds the paths that are locked.
    """

    def __init__(self) -> None:
        self.generation = 0
        self.locks: set[Path] = set()
        self.used_share, self.free_bytes = 0.0, 0
        self.before: Hook = lambda _call, _path: None
        self.after: Hook = lambda _call, _path: None
        self._boot = next(_boots)
        self._root = Folder()
        self._changes: list[NameChange] = []  # from the durable names to the names, oldest first

    def open(self, path: Path, *, create: bool = False, read_only: bool = False) -> _SimFile:
        with _Call(self, "open", path):
            return _SimFile(self, path, self._open(path, create=create), read_only=read_only)

    def exists(self, path: Path) -> bool:
        with _Call(self, "exists", path):
            try:
                self._node(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def list_dir(self, path: Path) -> list[str]:
        with _Call(self, "list_dir", path):
            try:
                return sorted(self._folder(path).entries)
            except FileNotFoundError:
                return []

    def make_dirs(self, path: Path) -> None:
        with _Call(self, "make_dirs", path):
            folder = self._root
            names = path.parts[1:]
            for depth, name in enumerate(names, 1):
                child = folder.entries.get(name)
                if child is None:
                    child = Folder()
                    self._change(None, (folder, name), child)
                if not isinstance(child, Folder):
                    if depth < len(names):
                        raise NotADirectoryError(errno.ENOTDIR, "a part of this path is a file", str(path))
                    raise FileExistsError(errno.EEXIST, "a file has this name", str(path))
                folder = child

    def replace(self, source: Path, target: Path) -> None:
        with _Call(self, "replace", target):
            node = self._file(source)
            self._change((self._folder(source.parent), source.name), self._place(target), node)

    def unlink(self, path: Path) -> None:
        with _Call(self, "unlink", path):
            self._change((self._folder(path.parent), path.name), None, self._file(path))

    def sync_dir(self, path: Path) -> None:
        folder = self._folder(path)
        with _sync_errors(lambda: self._drop_names(folder)), _Call(self, "sync_dir", path):
            for change in self._changes:
                change.settle(folder)
            self._changes = [rest for one in self._changes if (rest := one.without(folder)) is not None]

    def lock(self, path: Path) -> _SimLock:
        with _Call(self, "lock", path):
            if path in self.locks:
                raise BlockingIOError(errno.EAGAIN, "locked by another holder", str(path))
            self._open(path, create=True)
            self.locks.add(path)
            return _SimLock(self, path)

    def usage(self, path: Path) -> DiskUsage:
        with _Call(self, "usage", path):
            self._node(path)
            return DiskUsage(self.used_share, self.free_bytes)

    def boot_id(self) -> str:
        return f"{self._boot:036d}"

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return call(*args, **kwargs)

    async def offload_in(self, lane: Lane, call: Callable[[], T]) -> T:
        return await self.offload(call)

    def kill(self) -> None:
        """The process dies: open files and locks are gone, what was written stays (the page cache outlives us)."""
        self.generation += 1
        self.locks.clear()

    def crash(self, rng: Rng) -> None:
        """The power goes: of what was not synced, a random subset of sectors, lengths and names survives."""
        self.kill()
        self._boot = next(_boots)
        cut = PowerCut(self._root, self._changes)
        self._root, _ = cut.tree(rng.randrange(0, 1 << cut.units))
        self._changes = []

    def lost_states(self, rng: Rng, *, exhaustive_units_max: int = 10, samples: int = 1_000) -> Iterator[SimDisk]:
        """Each disk that could be found if the power went now; this disk goes on and does not change them.

        Units are dirty sectors, unsynced lengths and changes of names. With at most `exhaustive_units_max` of them all
        subsets are yielded, else about `samples` random ones, always "nothing survives" first and "everything
        survives" second; subsets that leave the same disk are yielded once. The same `rng` gives the same states.
        """
        cut = PowerCut(*copy_tree(self._root, self._changes))
        return self._found(cut, cut.numbers(rng, exhaustive_units_max, samples))

    def fork(self) -> SimDisk:
        """An independent copy without hooks; locks are held in it, and files that are open here are not in it."""
        fork = SimDisk()
        fork._root, fork._changes = copy_tree(self._root, self._changes)
        fork.locks, fork.used_share, fork.free_bytes = set(self.locks), self.used_share, self.free_bytes
        return fork

    def remove_tree(self, path: Path) -> None:
        """What `rm -r` and a sync would do: the names at and below `path` are gone, durably; no hook is called."""
        try:
            parent = self._folder(path.parent)
        except FileNotFoundError:
            return
        found = (names.pop(path.name, None) for names in (parent.entries, parent.durable))
        below = {id(node) for top in found if isinstance(top, Folder) for node in nodes_of(top, ())}

        def stays(place: Place | None) -> bool:
            return place is not None and id(place[0]) not in below and place != (parent, path.name)

        self._changes = [
            NameChange(
                change.gone if stays(change.gone) else None, change.added if stays(change.added) else None, change.node
            )
            for change in self._changes
            if stays(change.gone) or stays(change.added)
        ]

    def contents(self) -> dict[Path, bytes]:
        """Every file with its bytes, as the operating system shows them; no hook is called."""
        found: dict[Path, bytes] = {}

        def visit(path: Path, folder: Folder) -> None:
            for name, node in folder.entries.items():
                if isinstance(node, Folder):
                    visit(path / name, node)
                else:
                    found[path / name] = bytes(node.content)

        visit(Path("/"), self._root)
        return found

    def fingerprint(self, *, without: Container[str] = ()) -> tuple[object, ...]:
        """Equal for disks with the same names and bytes, as the operating system shows them; can be a key.

        Files and folders with the names `without` are left out.
        """
        parts: list[object] = []

        def visit(folder: Folder) -> None:
            for name in sorted(folder.entries):
                if name in without:
                    continue
                parts.append(name)
                node = folder.entries[name]
                if isinstance(node, Folder):
                    visit(node)
                    parts.append(None)
                else:
                    parts.append(bytes(node.content))

        visit(self._root)
        return tuple(parts)

    def _found(self, cut: PowerCut, numbers: Iterator[int]) -> Iterator[SimDisk]:
        for tree in cut.trees(numbers):
            disk = SimDisk()
            disk._root, disk.used_share, disk.free_bytes = tree, self.used_share, self.free_bytes
            yield disk

    def _change(self, gone: Place | None, added: Place | None, node: Node) -> None:
        if gone is not None:
            gone[0].entries.pop(gone[1], None)
        if added is not None:
            added[0].entries[added[1]] = node
        self._changes.append(NameChange(gone, added, node))

    def _drop_names(self, folder: Folder) -> None:
        self._changes = [change for change in self._changes if not change.touches(folder)]

    def _open(self, path: Path, *, create: bool) -> Inode:
        try:
            return self._file(path)
        except FileNotFoundError:
            if not create:
                raise
        inode = Inode()
        self._change(None, self._place(path), inode)
        return inode

    def _place(self, path: Path) -> Place:
        """Where a file of this name is or would be. Raises IsADirectoryError."""
        folder = self._folder(path.parent)
        if isinstance(folder.entries.get(path.name), Folder):
            raise IsADirectoryError(errno.EISDIR, "this is a folder", str(path))
        return folder, path.name

    def _file(self, path: Path) -> Inode:
        node = self._node(path)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, "this is a folder", str(path))
        return node

    def _folder(self, path: Path) -> Folder:
        node = self._node(path)
        if not isinstance(node, Folder):
            raise NotADirectoryError(errno.ENOTDIR, "this is a file", str(path))
        return node

    def _node(self, path: Path) -> Node:
        node: Node = self._root
        for name in path.parts[1:]:
            if not isinstance(node, Folder):
                raise NotADirectoryError(errno.ENOTDIR, "a part of this path is a file", str(path))
            child = node.entries.get(name)
            if child is None:
                raise FileNotFoundError(errno.ENOENT, "no such file or folder", str(path))
            node = child
        return node
