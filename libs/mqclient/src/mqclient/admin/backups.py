"""A copy of the store of a running broker, in a folder of this machine.

backup.json says what the folder holds:

    {"formatVersion": 1, "brokerName": "broker-a", ..., "files": [{"path": ..., "size": ..., ...}], "crc32": "0f3a9c51"}

`crc32` is the last field, over the whole file while its digits are zeros, as in the documents of a store. Their codec
is the broker's, which a client does not import, and gives each the log offset that it covers.

Invariants: nothing is written outside of the folder, and nothing into one that holds something; backup.json is written
last, when everything else is on disk and is what the broker has sent: without it the copy is not complete.
"""

from __future__ import annotations

import errno
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from mqclient.admin.brokers import AdminCalls
from mqclient.errors import ConnectionLostError, IllegalArgumentError, RequestTimeoutError
from mqclient.transport import Stream
from mqclient.transport.methods import BACKUP_STORE
from mqproto.codes import VERSION_PATH, check_path
from osenv import Clock, Disk, DiskFile, replace_file
from osenv.clock import timeout
from osenv.disk import make_durable_dirs
from osenv.windows_disk import disk_of_this_system

DESCRIPTION_NAME = "backup.json"
FORMAT = 1
_NO_CRC = "0" * 8

P = ParamSpec("P")
T = TypeVar("T")

PART_TIMEOUT_S = 60.0  # a broker whose disk is slow still sends something

Answers = Stream[admin_pb.BackupStoreRequest, admin_pb.BackupStoreResponse]


@dataclass(frozen=True, slots=True)
class BackedUpFile:
    """One file of the copy: `path` is below the folder, and below the root of a store, where it is `full_size` long."""

    path: str
    size: int
    full_size: int
    crc32: int


@dataclass(frozen=True, slots=True)
class BackupDescription:
    """A copy of the store of `broker_name`, as it was at `timestamp_ms` (ms since 1970, the broker's time).

    The log of the copy runs from `log_min_offset` to `log_max_offset`.
    """

    broker_name: str
    timestamp_ms: int
    log_min_offset: int
    log_max_offset: int
    files: tuple[BackedUpFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    def encode(self) -> bytes:
        """The content of backup.json."""
        fields = {
            "formatVersion": FORMAT,
            "brokerName": self.broker_name,
            "timestampMs": self.timestamp_ms,
            "logMinOffset": self.log_min_offset,
            "logMaxOffset": self.log_max_offset,
            "files": [
                {"path": file.path, "size": file.size, "fullSize": file.full_size, "crc32": f"{file.crc32:08x}"}
                for file in self.files
            ],
        }
        return _sealed(fields)

    @classmethod
    def decode(cls, content: bytes) -> BackupDescription:
        """The inverse. Raises ValueError for what is damaged, newer, or describes no copy of a store."""
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"it is damaged: {error}") from None
        if not isinstance(fields, dict) or content != _sealed({**fields, "crc32": _NO_CRC}):
            raise ValueError("it is damaged: the CRC does not match")
        version = fields.get("formatVersion")
        if version != FORMAT:
            raise ValueError(f"it is of version {version!r}; this program reads version {FORMAT}")
        return cls(
            fields["brokerName"],
            fields["timestampMs"],
            fields["logMinOffset"],
            fields["logMaxOffset"],
            tuple(_file(file) for file in fields["files"]),
        ).checked()

    def checked(self) -> BackupDescription:
        """This description. Raises ValueError when it describes no copy of a store."""
        paths = [str(check_path(file.path)) for file in self.files]
        if len(set(paths)) < len(paths) or DESCRIPTION_NAME in paths:
            raise ValueError("a file of it is named twice")
        if VERSION_PATH not in paths:
            raise ValueError(f"it has no file {VERSION_PATH!r}, which every store has")
        if any(not 0 <= file.size <= file.full_size for file in self.files):
            raise ValueError("a file of it is longer than in the store")
        return self


def _file(fields: dict[str, Any]) -> BackedUpFile:
    return BackedUpFile(fields["path"], fields["size"], fields["fullSize"], int(fields["crc32"], 16))


def _sealed(fields: dict[str, Any]) -> bytes:
    content = json.dumps({**fields, "crc32": _NO_CRC}, indent=1) + "\n"
    crc = f'"crc32": "{zlib.crc32(content.encode()):08x}"'
    head, _, tail = content.rpartition(f'"crc32": "{_NO_CRC}"')
    return (head + crc + tail).encode()


class BackupAdmin(AdminCalls):
    """Calls about copies of stores."""

    async def backup_store(self, broker: str, folder: Path, *, disk: Disk | None = None) -> BackupDescription:
        """Copy the store of a broker, given by its name or by its address (`host:port`), into an empty folder.

        Everything that was acknowledged before the call is in the copy, on disk on return. A folder without backup.json
        holds a copy that has not come to its end. Raises IllegalArgumentError for a folder that is not empty,
        NoRouteError, ConnectionLostError when the broker rejects, its disk fails or what came is not what it has sent,
        RequestTimeoutError when it falls silent, OSError when this machine's disk rejects.
        """
        target = self._target_at(broker) if ":" in broker else await self._target_named(broker)
        own = disk_of_this_system() if disk is None else None
        writer = _Writer(own or disk or disk_of_this_system(), folder)
        try:
            await writer.begin()
            async with target.connection.stream(BACKUP_STORE) as stream:
                await stream.write(admin_pb.BackupStoreRequest())
                await stream.done_writing()
                return await _receive(stream, writer, self._instance.clock, target.name)
        finally:
            writer.close()
            if own is not None:
                own.close()


async def _receive(stream: Answers, writer: _Writer, clock: Clock, broker: str) -> BackupDescription:
    while True:
        try:
            async with timeout(clock, PART_TIMEOUT_S):
                part = await stream.read()
        except TimeoutError:
            raise RequestTimeoutError(f"{broker} has sent nothing of its store for {PART_TIMEOUT_S:g} s") from None
        try:
            if (whole := await writer.take(part or admin_pb.BackupStoreResponse())) is not None:
                return whole
        except ValueError as error:
            raise ConnectionLostError(f"what came of the store of {broker} is no copy of it: {error}") from error


@dataclass
class _Writer:
    """The folder as it grows. Each method raises ValueError for what the broker cannot have meant, and OSError."""

    disk: Disk
    folder: Path
    _files: list[BackedUpFile] = field(default_factory=list)
    _folders: set[Path] = field(default_factory=set)
    _path: Path = field(default_factory=Path)
    _file: DiskFile | None = None
    _announced: admin_pb.BackupFile = field(default_factory=admin_pb.BackupFile)
    _at: int = 0
    _file_crc: int = 0
    _crc: int = 0

    async def begin(self) -> None:
        """Have the folder. Raises IllegalArgumentError when it holds something."""
        if names := await self._ask_disk(self.folder, self.disk.list_dir, self.folder):
            rest = "" if DESCRIPTION_NAME in names else "; if it is a copy that has not come to its end, remove it"
            raise IllegalArgumentError(f"{self.folder} is not empty: a copy begins in an empty folder{rest}")
        await self._ask_disk(self.folder, self._make, self.folder)

    async def take(self, part: admin_pb.BackupStoreResponse) -> BackupDescription | None:
        """Write the next part of the copy; the description after the last part."""
        match part.WhichOneof("part"):
            case "file":
                await self._begin_file(part.file)
            case "content":
                await self._write(part.content)
            case "end":
                return await self._finish(part.end)
            case _:
                raise ValueError("it has ended in the middle")
        return None

    async def _begin_file(self, file: admin_pb.BackupFile) -> None:
        await self._end_file()
        self._path = self.folder / check_path(file.path)
        self._announced, self._at, self._file_crc = file, 0, 0
        await self._ask_disk(self._path, self._make, self._path.parent)
        self._file = await self._ask_disk(self._path, self.disk.open, self._path, create=True)

    async def _write(self, content: bytes) -> None:
        if self._file is None or self._at + len(content) > self._announced.size:
            raise ValueError("there is more of a file than was announced")
        await self._ask_disk(self._path, self._file.pwrite, content, self._at)
        self._at += len(content)
        self._file_crc = zlib.crc32(content, self._file_crc)
        self._crc = zlib.crc32(content, self._crc)

    async def _finish(self, end: admin_pb.BackupEnd) -> BackupDescription:
        """Make the complete copy durable, and write backup.json."""
        await self._end_file()
        found = BackupDescription(
            end.broker_name, end.timestamp_ms, end.log_min_offset, end.log_max_offset, tuple(self._files)
        ).checked()
        if (len(found.files), found.size, self._crc) != (end.files, end.bytes, end.crc32):
            raise ValueError(
                f"the broker has sent {end.files} files of {end.bytes} bytes with CRC {end.crc32:08x}; here are "
                f"{len(found.files)} of {found.size} with {self._crc:08x}"
            )
        for folder in sorted(self._folders):
            await self._ask_disk(folder, self.disk.sync_dir, folder)
        path = self.folder / DESCRIPTION_NAME
        await self._ask_disk(path, replace_file, self.disk, path, found.encode(), keep_previous=False)
        return found

    def close(self) -> None:
        """Give the file back that is open."""
        if self._file is not None:
            self._file.close()
            self._file = None

    async def _end_file(self) -> None:
        if self._file is None:
            return
        if self._at != self._announced.size:
            raise ValueError(
                f"of {self._announced.path} {self._at} bytes came, and {self._announced.size} were announced"
            )
        await self._ask_disk(self._path, self._file.sync_data)
        self.close()
        self._files.append(
            BackedUpFile(self._announced.path, self._announced.size, self._announced.full_size, self._file_crc)
        )

    async def _ask_disk(self, path: Path, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have the disk do something; its error says with which file it came."""
        try:
            return await self.disk.offload(call, *args, **kwargs)
        except OSError as error:
            if error.filename is not None:
                raise
            raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error

    def _make(self, folder: Path) -> None:
        """Have the folder; the names in it are durable when `_finish` has synced it."""
        if folder not in self._folders:
            make_durable_dirs(self.disk, folder)
            self._folders.add(folder)
