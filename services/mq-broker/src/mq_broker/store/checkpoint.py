"""The checkpoint: up to where log and consume queues were durable together (MISSION S7).

The first three numbers are RocketMQ's and stand at its places: the store timestamp of the newest message whose log and
consume queue are flushed, and of the newest one in an index file that is full and flushed. Ours follow at byte 64: the
log offset, how many consume-queue entries stand below it, which betrays a queue that is missing or short, and how far
the index is. Layout: FORMAT.md.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from struct import Struct

from mq_broker.store.index import IndexPoint
from mq_broker.store.layout import CHECKPOINT_BYTES, StoreLayout
from osenv import Disk, replace_file
from osenv.disk import read_file

_ROCKETMQ = Struct(">qqq")
_OURS_AT, _OURS = 64, Struct(">qqqqqqq")
_CRC_AT, _CRC = 120, Struct(">I")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything below `log_offset` is durable in the log and in the consume queues."""

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
