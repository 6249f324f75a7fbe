"""The offsets of a broadcasting consumer, kept in a file on its own machine.

    <home>/.rocketmq_offsets/<ip>@<instance name>/<group>/offsets.json

The folder is RocketMQ's. Its name for the client has no process id, because it has to be the same after a restart: for
two consumers of one group on one machine, give each a ClientConfig with an `instance_name` of its own. The same holds
for two clusters, and for a machine whose address changes: it begins anew there.

The file is RocketMQ's, too, and not quite JSON: the keys of the table are objects.

    {"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"prices"}:17},"crc32":"0f3a9c51"}

`crc32` is this project's, the last field, over everything before it: a digit that the disk has changed is noticed.
RocketMQ passes over fields that it does not know; a file without it comes from there.

Invariants: one process has the file, by a lock that ends with it; after a crash at any moment the file, or its previous
version beside it (.bak), is whole; a file that cannot be read is never taken for "nothing consumed yet".
"""

from __future__ import annotations

import asyncio
import json
import logging
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.offsets import FROM_FIRST, Progress
from mqclient.consumer.pulling import offset_at, offsets_of
from mqclient.errors import IllegalArgumentError, IllegalStateError, MQClientError, RetryableError
from mqclient.lifecycle import finish_despite_cancellation
from mqclient.message import MessageQueue
from osenv import Disk, FileLock, RealDisk, replace_file
from osenv.disk import read_file
from osenv.windows_disk import disk_of_this_system

logger = logging.getLogger("mqclient.broadcast_offsets")

TABLE_HEAD, TABLE_END, FILE_END = '{"offsetTable":{', "}", "}\n"
CRC_FIELD = ',"crc32":"'

_decoder = json.JSONDecoder()

FOLDER = ".rocketmq_offsets"
FILE, BACKUP, LOCK = "offsets.json", "offsets.json.bak", "lock"
SEPARATORS = "/\\\0"


def encode_offsets(offsets: Mapping[MessageQueue, int]) -> bytes:
    """The file's content."""
    entries = (f"{_key(queue)}:{offsets[queue]}" for queue in sorted(offsets))
    table = TABLE_HEAD + ",\n".join(entries) + TABLE_END
    return f'{table}{CRC_FIELD}{zlib.crc32(table.encode()):08x}"{FILE_END}'.encode()


def decode_offsets(content: bytes) -> dict[MessageQueue, int]:
    """The inverse, for RocketMQ's files as well. Raises ValueError when the content is damaged."""
    text = content.decode()
    table, found, tail = text.rpartition(CRC_FIELD)
    if not found:
        table = text.rstrip().removesuffix("}")  # RocketMQ's
    elif tail != f'{zlib.crc32(table.encode()):08x}"{FILE_END}':
        raise ValueError("the CRC does not match")
    return dict(_entries(_Reader(table)))


def _key(queue: MessageQueue) -> str:
    fields = {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}
    return json.dumps(fields, separators=(",", ":"))


class _Reader:
    """The text from left to right; spaces between two tokens do not count."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def skip(self, token: str) -> bool:
        """Whether the token comes next; then what follows it does."""
        self._pass_spaces()
        if not self._text.startswith(token, self._at):
            return False
        self._at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.skip(token):
            raise ValueError(f"{token!r} is missing at character {self._at}")

    def value(self) -> object:
        self._pass_spaces()
        try:
            value, self._at = _decoder.raw_decode(self._text, self._at)
        except RecursionError:
            raise ValueError("nested too deeply") from None
        return value

    def expect_end(self) -> None:
        self._pass_spaces()
        if self._at != len(self._text):
            raise ValueError(f"something follows the table at character {self._at}")

    def _pass_spaces(self) -> None:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1


def _entries(reader: _Reader) -> Iterator[tuple[MessageQueue, int]]:
    for token in ("{", '"offsetTable"', ":", "{"):
        reader.expect(token)
    if not reader.skip("}"):
        while True:
            queue = _queue(reader.value())
            reader.expect(":")
            offset = reader.value()
            if type(offset) is not int or offset < 0:
                raise ValueError(f"the offset of {queue} is {offset!r}")
            yield queue, offset
            if not reader.skip(","):
                break
        reader.expect("}")
    reader.expect_end()


def _queue(key: object) -> MessageQueue:
    match key:
        case {"topic": str(topic), "brokerName": str(broker_name), "queueId": int(queue_id)}:
            return MessageQueue(topic, broker_name, queue_id)
    raise ValueError(f"{key!r} names no queue")


class LocalFileOffsetStore:
    """`load` it once, `save` as often as wanted, `close` it in the end. Files are read and written in a thread."""

    def __init__(
        self,
        group: str,
        instance_name: str,
        local_ip: str,
        directory: Path | None = None,
        *,
        disk: Disk | None = None,
    ) -> None:
        """`directory` takes the place of <home>/.rocketmq_offsets; `disk` that of this system's files.

        Raises IllegalArgumentError when the instance name cannot be a folder's, or there is no home.
        """
        if any(character in SEPARATORS for character in instance_name):
            raise IllegalArgumentError(
                f"instance_name is {instance_name!r}; that of a broadcasting consumer names a folder, without / and \\"
            )
        self.path = (directory or _home() / FOLDER) / f"{local_ip}@{instance_name}" / group / FILE
        self._group = group
        self._given_disk = disk
        self._own_disk: RealDisk | None = None
        self._disk: Disk | None = None
        self._lock: FileLock | None = None
        self._one_at_a_time = asyncio.Lock()

    async def load(self) -> dict[MessageQueue, int]:
        """What was saved last; empty at the first start. From here on no other process can have the file.

        Raises IllegalStateError when another one has it, when it and its .bak are damaged, and when it cannot be used.
        """
        disk = self._given_disk
        if disk is None:
            disk = self._own_disk = disk_of_this_system()
        self._disk = disk
        try:
            return await finish_despite_cancellation(disk.offload(self._lock_and_read, disk))
        except BaseException:
            await self.close()
            raise

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Let the file say this and nothing else; durable on return, and the content before is kept as .bak.

        Raises IllegalStateError unless loaded, and RetryableError when the disk does not take it.
        """
        content = encode_offsets(offsets)
        async with self._one_at_a_time:
            disk = self._disk
            if disk is None:
                raise IllegalStateError(f"the offsets in {self.path} are not open: load comes before, and close after")
            try:
                await finish_despite_cancellation(disk.offload(replace_file, disk, self.path, content))
            except OSError as error:
                raise RetryableError(f"the offsets of {self._group} were not saved in {self.path}: {error}") from error

    async def close(self) -> None:
        """Let another process have the file; waits for a `save` that runs. Does nothing the second time."""
        async with self._one_at_a_time:
            self._disk = None
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()
            own_disk, self._own_disk = self._own_disk, None
            if own_disk is not None:
                own_disk.close()

    def _lock_and_read(self, disk: Disk) -> dict[MessageQueue, int]:
        folder = self.path.parent
        try:
            disk.make_dirs(folder)
            for new in (folder, *folder.parents[:2]):
                disk.sync_dir(new.parent)
            self._lock = disk.lock(folder / LOCK)
            return self._read(disk)
        except BlockingIOError as error:
            raise IllegalStateError(
                f"another consumer on this machine has the offsets of {self._group} in {folder}; "
                f"give one of the two a ClientConfig with another instance_name"
            ) from error
        except OSError as error:
            raise IllegalStateError(f"the offsets of {self._group} cannot be kept in {folder}: {error}") from error

    def _read(self, disk: Disk) -> dict[MessageQueue, int]:
        damage = []
        for path in (self.path, self.path.with_name(BACKUP)):
            try:
                offsets = decode_offsets(read_file(disk, path))
            except FileNotFoundError:
                continue
            except ValueError as error:
                damage.append(f"{path.name}: {error}")
                continue
            if path != self.path:
                logger.error(
                    "%s is lost or damaged (%s); %s is used, and what was consumed since then comes again",
                    self.path,
                    "; ".join(damage) or "it is not there",
                    path.name,
                )
                # At once, and without a previous version: the damaged file must not take the place of the good one.
                replace_file(disk, self.path, encode_offsets(offsets), keep_previous=False)
            return offsets
        if damage:
            raise IllegalStateError(
                f"the offsets of {self._group} in {self.path.parent} are damaged ({'; '.join(damage)}); "
                f"repair the file, or remove it to begin anew"
            )
        return {}


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise IllegalArgumentError(f"there is no home folder ({error}); set local_offset_store_dir") from error


class BroadcastOffsetStore:
    """An OffsetStore over a file, or in memory without one. Each member begins by itself: with what it kept, or at
    `begin`."""

    def __init__(
        self, instance: ClientInstance, begin: broker_pb.ConsumeBegin, file: LocalFileOffsetStore | None
    ) -> None:
        self._instance = instance
        self._begin = begin
        self._file = file
        self._offsets: dict[MessageQueue, int] = {}
        self._saved: dict[MessageQueue, int] = {}
        self._known: frozenset[str] = frozenset()  # topics with which this member had begun before it started

    async def open(self) -> None:
        """Read the file. Raises IllegalStateError when another process of this name has it."""
        if self._file is not None:
            self._saved = await self._file.load()
        self._offsets = dict(self._saved)
        self._known = frozenset(queue.topic for queue in self._saved)

    async def begin(self, queue: MessageQueue, *, from_first: bool = False) -> Progress:
        """What was kept, or what the broker says of the beginning. Raises MQClientError.

        A queue of which nothing was kept was made later if something was kept of its topic, and begins with its first
        message.
        """
        kept = self._offsets.get(queue)
        if kept is None:
            begin = FROM_FIRST if from_first or queue.topic in self._known else self._begin
            kept = self._offsets[queue] = await self._ask(queue, begin)
        return Progress(kept)

    async def commit(self, progress: Mapping[MessageQueue, Progress]) -> bool:
        """Write what has changed. What the disk does not take is logged; the next commit of any queue tries again."""
        self._offsets.update((queue, one.offset) for queue, one in progress.items())
        if self._file is None or self._offsets == self._saved:
            return True
        offsets = dict(self._offsets)
        try:
            await self._file.save(offsets)
        except MQClientError as error:
            logger.warning("offsets were not saved: %s", error)
        else:
            self._saved = offsets
        return True

    def forget(self, queue: MessageQueue) -> None:
        """The file keeps what it has: the queue may come back."""

    def invalidate(self) -> None:
        """No other process sets these offsets."""

    async def close(self) -> None:
        """Let another process have the file."""
        if self._file is not None:
            await self._file.close()

    async def _ask(self, queue: MessageQueue, begin: broker_pb.ConsumeBegin) -> int:
        connection = self._instance.calls.readers(queue.broker_name)
        if begin.where == broker_pb.CONSUME_FROM_TIMESTAMP:
            return await offset_at(connection, queue, begin.timestamp_ms)
        first, end = await offsets_of(connection, queue)
        return first if begin.where == broker_pb.CONSUME_FROM_FIRST_OFFSET else end
