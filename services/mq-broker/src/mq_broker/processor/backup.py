"""A copy of the store of a running broker, for an operator (ADR 41)."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.limits import RejectedError
from mq_broker.store.commit_log import NAME_DIGITS
from mq_broker.store.consume_queue import ConsumeQueue, Given, QueueKey, encode_numbers
from mq_broker.store.durability import encode_watermark
from mq_broker.store.layout import STORE_VERSION, encode_version
from mq_broker.store.log_scan import TEMPORARY_SUFFIX
from mq_broker.store.message_store import MessageStore
from mqproto.codes import PART_BYTES_MAX, ResponseCode
from osenv import Disk, DiskFile


@dataclass(frozen=True, slots=True)
class BackupFile:
    """The next `size` bytes are this file's; see admin_service.proto."""

    path: str
    size: int
    full_size: int


@dataclass(frozen=True, slots=True)
class BackupEnd:
    """The copy is complete; see admin_service.proto."""

    broker_name: str
    timestamp_ms: int
    log_min_offset: int
    log_max_offset: int
    files: int
    bytes: int
    crc32: int


BackupPart = BackupFile | BackupEnd | bytes


@dataclass
class Backup:
    """The processor of backups.

    Invariants: the copy is one moment, and holds everything that was acknowledged before it was asked for; one is made
    at a time, with one part of it in memory; without a `BackupEnd` it is not complete.
    """

    store: MessageStore
    time: BrokerTime
    broker_name: str
    _is_running: bool = field(default=False, init=False)

    async def parts(self) -> AsyncGenerator[BackupPart, None]:
        """The copy; a caller that does not read it to its end closes it.

        Raises RejectedError while another one is made, StoreFencedError, OSError.
        """
        if self._is_running:
            raise RejectedError(ResponseCode.SYSTEM_BUSY, "another backup is being made; one at a time")
        self._is_running = True
        copy: StoreCopy | None = None
        try:
            timestamp_ms = self.time.now_ms()
            copy = StoreCopy(self.store, self.store.states.current())
            files = await copy.prepare()
            size = crc = 0
            for file in files:
                yield BackupFile(file.path, file.size, file.full_size)
                for at in range(0, file.size, PART_BYTES_MAX):
                    part = await self.store.disk.offload(file.read, min(PART_BYTES_MAX, file.size - at), at)
                    size, crc = size + len(part), await self.store.disk.offload(zlib.crc32, part, crc)
                    yield part
            yield BackupEnd(self.broker_name, timestamp_ms, copy.log_begin, copy.log_end, len(files), size, crc)
        finally:
            self._is_running = False
            if copy is not None:
                copy.close()


GONE = 0  # where a message stood that is in no file any more, as consume queues say it


@dataclass(frozen=True, slots=True)
class FileCopy:
    """One file of the copy: its first `size` bytes; the file in the store is `full_size` long, empty behind them."""

    path: str  # below the root, with "/"
    size: int
    full_size: int
    content: bytes | DiskFile

    def read(self, length: int, offset: int) -> bytes:
        """Exactly `length` bytes of the first `size`; may block. Raises OSError."""
        if isinstance(self.content, bytes):
            return self.content[offset : offset + length]
        data = self.content.pread(length, offset)
        if len(data) != length:
            raise OSError(f"{self.path} has lost its end: {length} bytes at {offset} are not there")
        return data


class StoreCopy:
    """A running store as it is at one moment, to be read while it goes on (ADR 41).

    Made by the moment that it shows: everything is taken at once. To be prepared, read, and closed.

    Invariants: what the documents say is never ahead of the log of the copy, because both are taken in one step of the
    event loop; the log of the copy is durable before its first byte is given away; its files can be read to the end,
    although they may be deleted meanwhile.
    """

    def __init__(self, store: MessageStore, documents: Mapping[str, bytes]) -> None:
        """`documents` are the states by the names of their files. Raises OSError when a file cannot be opened."""
        self._store, self._documents = store, documents
        self.log_begin, self.log_end = store.log.begin, store.log.end
        self._given = [(queue, queue.max_offset) for queue in store.queues if queue.max_offset]
        self._open: list[DiskFile] = []
        layout, disk = store.layout, store.disk
        try:
            self._quarantine = [
                self._opened(disk, layout.quarantine / name)
                for name in disk.list_dir(layout.quarantine)
                if not name.endswith(TEMPORARY_SUFFIX)
            ]
            self._log = [
                self._opened(disk, layout.commit_log / f"{start:0{NAME_DIGITS}d}", self.log_end - start)
                for start in store.log.files.starts
                if self.log_begin <= start <= self.log_end
            ]
        except OSError:
            self.close()
            raise

    async def prepare(self) -> list[FileCopy]:
        """The files, in the order in which they are to be given away. Raises StoreFencedError, OSError."""
        await self._store.sync()
        numbers = await self._store.disk.offload(self._numbers)
        return [*self._small_files(numbers), *self._quarantine, *self._log]

    def close(self) -> None:
        """Close the files."""
        while self._open:
            self._open.pop().close()

    def _small_files(self, numbers: dict[QueueKey, Given]) -> Iterator[FileCopy]:
        layout = self._store.layout
        yield self._made(layout.version, encode_version(STORE_VERSION))
        yield self._made(layout.abort, b"")  # a broker that opens the copy has to recover
        yield self._made(layout.watermark, encode_watermark(self.log_end))
        for name, content in sorted(self._documents.items()):
            yield self._made(layout.config / name, content)
        if numbers:
            yield self._made(layout.queue_numbers, encode_numbers(numbers))

    def _numbers(self) -> dict[QueueKey, Given]:
        """The numbers that each queue has given: a queue may have no message left that would tell. May block."""
        return {(queue.topic, queue.queue_id): (given, _last_place(queue, given)) for queue, given in self._given}

    def _made(self, path: Path, content: bytes) -> FileCopy:
        return FileCopy(self._name(path), len(content), len(content), content)

    def _opened(self, disk: Disk, path: Path, size_max: int | None = None) -> FileCopy:
        file = disk.open(path, read_only=True)
        self._open.append(file)
        full_size = file.size()
        return FileCopy(self._name(path), full_size if size_max is None else min(size_max, full_size), full_size, file)

    def _name(self, path: Path) -> str:
        return path.relative_to(self._store.layout.root).as_posix()


def _last_place(queue: ConsumeQueue, given: int) -> int:
    """Where in the log the last of the queue's `given` messages stands or stood, as its file says; may block."""
    try:
        entry = queue.read(given - 1, 1)
    except ValueError:  # the file with its entry has gone since, and so has the message
        return GONE
    return int(CQ_ENTRY.unpack(entry)[0])
