"""The store's folder: where things are, how large the files are, its version and its checkpoint.

Mechanisms S1-S3, S7.
"""

from __future__ import annotations

import logging
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.store.errors import StoreDamagedError, StoreVersionError
from mq_broker.store.index import IndexPoint, IndexSize
from mq_broker.store.state_files import NewerFormatError, decode_document
from mqproto.codes import VERSION_PATH
from osenv import Disk, SyncError, replace_file
from osenv.disk import read_file

log = logging.getLogger(__name__)

COMMIT_LOG_FILE_BYTES = 1024 * 1024 * 1024
CONSUME_QUEUE_FILE_ENTRIES = 300_000
CONSUME_QUEUE_AHEAD_BYTES = 64 * 1024  # blocks of a sparse consume-queue file allocated ahead of its end
CHECKPOINT_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Paths and sizes; sizes are RocketMQ's unless a test makes them small."""

    root: Path
    commit_log_file_bytes: int = COMMIT_LOG_FILE_BYTES
    consume_queue_file_entries: int = CONSUME_QUEUE_FILE_ENTRIES
    index_size: IndexSize = field(default_factory=IndexSize)

    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

    @property
    def consume_queues(self) -> Path:
        return self.root / "consumequeue"

    def consume_queue(self, topic: str, queue_id: int) -> Path:
        return self.consume_queues.joinpath(topic, str(queue_id))

    @property
    def consume_queue_file_bytes(self) -> int:
        return self.consume_queue_file_entries * CQ_ENTRY.size

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def timer(self) -> Path:
        return self.root / "timer"

    @property
    def timer_manifest(self) -> Path:
        return self.timer / "runs.json"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def queue_numbers(self) -> Path:
        return self.config / "queueNumbers.json"

    @property
    def queue_ends(self) -> Path:
        return self.config / "queueEnds.json"

    @property
    def version(self) -> Path:
        return self.root / VERSION_PATH

    @property
    def abort(self) -> Path:
        return self.root / "abort"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def watermark(self) -> Path:
        return self.root / "watermark"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def lock(self) -> Path:
        return self.root / "lock"


_ROCKETMQ = Struct(">qqq")
_OURS_AT, _OURS = 64, Struct(">qqqqqqq")
_CRC_AT, _CRC = 120, Struct(">I")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The checkpoint: up to where log and consume queues were durable together (mechanism S7).

    Everything below `log_offset` is durable in the log and in the consume queues.

    The first three numbers are RocketMQ's and stand at its places: the store timestamp of the newest message whose log
    and consume queue are flushed, and of the newest one in an index file that is full and flushed. Ours follow at byte
    64: the log offset, how many consume-queue entries stand below it, which betrays a queue that is missing or short,
    and how far the index is. Layout: FORMAT.md.
    """

    log_offset: int
    entry_count: int
    newest_store_ms: int
    index: IndexPoint = field(default_factory=IndexPoint)
    full_index_ms: int = 0  # RocketMQ deletes every index file after a crash that ends later than this

    def encode(self) -> bytes:
        """The file's 4 KiB."""
        data = bytearray(CHECKPOINT_BYTES)
        _ROCKETMQ.pack_into(data, 0, self.newest_store_ms, self.newest_store_ms, self.full_index_ms)
        index = self.index
        _OURS.pack_into(
            data, _OURS_AT, self.log_offset, self.entry_count, self.newest_store_ms,
            index.file_name, index.next_number, index.log_offset, index.file_count,
        )  # fmt: skip
        _CRC.pack_into(data, _CRC_AT, zlib.crc32(data[:_CRC_AT]))
        return bytes(data)

    @classmethod
    def decode(cls, data: bytes) -> Checkpoint | None:
        """The inverse; None when the bytes are damaged or not ours, which means a full scan and no loss."""
        if len(data) != CHECKPOINT_BYTES or _CRC.unpack_from(data, _CRC_AT) != (zlib.crc32(data[:_CRC_AT]),):
            return None
        log_offset, entry_count, newest_store_ms, *index = _OURS.unpack_from(data, _OURS_AT)
        return cls(log_offset, entry_count, newest_store_ms, IndexPoint(*index), _ROCKETMQ.unpack_from(data)[2])


def write_checkpoint(disk: Disk, layout: StoreLayout, checkpoint: Checkpoint) -> None:
    """Durable on return. Everything that it promises has to be durable before."""
    replace_file(disk, layout.checkpoint, checkpoint.encode())


def read_checkpoint(disk: Disk, layout: StoreLayout) -> Checkpoint | None:
    """The checkpoint, or None when there is none that can be believed."""
    try:
        return Checkpoint.decode(read_file(disk, layout.checkpoint))
    except FileNotFoundError:
        return None


# The version of a store as a whole: an older program must not touch it (Hourglass's own file, FORMAT.md).
#
# It speaks for everything that has no version of its own: log, consume queues, index, checkpoint, watermark, journal. A
# store without the file is RocketMQ's, or was written before there was one: version 1.
#
# Invariant: the file is on disk before anything else is written into a new store, and no store is changed before its
# version has been looked at.


STORE_VERSION = 1  # the newest that this program knows
LINE_BYTES, LINES = 512, 2  # the same line twice, a sector each
_LINE = re.compile(r"Hourglass store, version (\d+), crc32 ")
_DOCUMENT = re.compile(r".+\.json(\.bak)?")


def encode_version(version: int) -> bytes:
    """The file's bytes."""
    return _line(version) * LINES


def decode_version(data: bytes) -> int:
    """The inverse: what the largest whole line says. Raises ValueError when there is none."""
    versions = []
    for at in range(0, len(data), LINE_BYTES):
        line = data[at : at + LINE_BYTES]
        match = _LINE.match(line.decode("ascii", "replace"))
        if match is not None and line == _line(int(match[1])):
            versions.append(int(match[1]))
    if not versions:
        raise ValueError("no line of it is whole")
    return max(versions)


def _line(version: int) -> bytes:
    text = f"Hourglass store, version {version}"
    return f"{text}, crc32 {zlib.crc32(text.encode()):08x}".ljust(LINE_BYTES - 1).encode() + b"\n"


def reject_newer(disk: Disk, layout: StoreLayout) -> None:
    """Look at a store before anything is done to it.

    Raises StoreVersionError when this program is too old for the store or for one of its documents, StoreDamagedError
    when the version cannot be read, OSError.
    """
    try:
        version = decode_version(read_file(disk, layout.version))
    except FileNotFoundError:
        version = None
    except ValueError as error:
        raise StoreDamagedError(
            f"{layout.version} is damaged, {error}, so that the store may be of a newer version; nothing has been "
            f"changed. If this program, or an older one, has written the store, remove the file"
        ) from error
    if version is not None and version > STORE_VERSION:
        raise _too_new(layout.version, version, STORE_VERSION)
    for name in disk.list_dir(layout.config):
        if _DOCUMENT.fullmatch(name):
            _reject_newer_document(disk, layout.config / name)


def mark_version(disk: Disk, layout: StoreLayout) -> None:
    """Have the version written down, durably: where it is not yet, and where one of its lines is damaged.

    Raises OSError; for a store in use only SyncError.
    """
    whole = encode_version(STORE_VERSION)
    try:
        if disk.exists(layout.version):
            if read_file(disk, layout.version) == whole:
                disk.sync_dir(layout.root)  # its writer may have been killed before its name was on disk
                return
            log.error("%s is damaged, and written anew", layout.version)
        replace_file(disk, layout.version, whole, keep_previous=False)
    except OSError as error:
        is_new = not disk.list_dir(layout.commit_log)
        if is_new or isinstance(error, SyncError):
            raise
        log.warning("%s could not be written: %s", layout.version, error)


def _reject_newer_document(disk: Disk, path: Path) -> None:
    try:
        decode_document(read_file(disk, path))
    except NewerFormatError as error:
        raise _too_new(path, error.version, error.known) from error
    except ValueError:
        return  # damage: the reader of the document reports it


def _too_new(path: Path, version: int, known: int) -> StoreVersionError:
    return StoreVersionError(
        f"{path} says version {version}, and this program knows versions up to {known}: a newer one has written the "
        "store; start that one; nothing has been changed"
    )
