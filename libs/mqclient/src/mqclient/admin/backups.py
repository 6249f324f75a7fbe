"""A copy of the store of a running broker, in a folder of this machine.

Invariants: nothing is written outside of the folder, and nothing into one that holds something; backup.json is written
last, when everything else is on disk and is what the broker has sent.
"""

from __future__ import annotations

import errno
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec, TypeVar

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from mqclient.admin.asking import AdminCalls
from mqclient.admin.backup_description import DESCRIPTION_NAME, BackedUpFile, BackupDescription
from mqclient.errors import ConnectionLostError, IllegalArgumentError, RequestTimeoutError
from mqclient.transport import Stream
from mqclient.transport.methods import BACKUP_STORE
from mqproto.store_backup import check_path
from osenv import Clock, Disk, DiskFile, replace_file
from osenv.clock import timeout
from osenv.folders import make_durable_dirs
from osenv.windows_disk import disk_of_this_system

P = ParamSpec("P")
T = TypeVar("T")

PART_TIMEOUT_S = 60.0  # a broker whose disk is slow still sends something

Answers = Stream[admin_pb.BackupStoreRequest, admin_pb.BackupStoreResponse]


class BackupAdmin(AdminCalls):
    """Calls about copies of stores."""

    async def backup_store(self, broker: str, folder: Path, *, disk: Disk | None = None) -> BackupDescription:
        """Copy the store of a broker, given by its name or by its address (`host:port`), into an empty folder.

        Everything that was acknowledged before the call is in the copy, on disk on return. A folder without backup.json
        holds a copy that has not come to its end. Raises IllegalArgumentError for a folder that is not empty,
        NoRouteError, ConnectionLostError when the broker refuses, its disk fails or what came is not what it has sent,
        RequestTimeoutError when it falls silent, OSError when this machine's disk refuses.
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
        """Go on with what has come; the description when that was the end."""
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
        """That was all of it: make it durable, and say so in backup.json."""
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
