"""What a record from disk has to prove before it is handed on. What is proven, `decode_record` can read."""

from __future__ import annotations

import zlib
from struct import Struct

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.tag_filter import tag_hash
from mq_broker.store.consume_queue import ConsumeQueue
from mqproto.record import (
    BODY_AT,
    CRC_BYTES,
    FLAG_BORN_HOST_V6,
    FLAG_STORE_HOST_V6,
    MESSAGE_MAGIC,
    RECORD_BYTES_MIN,
    crc_property,
)

Entry = tuple[int, int, int]  # log offset, size, tag hash

_LENGTH_BYTES = 2  # of the properties
# size, magic, queue id, queue offset, physical offset, sysflag, body size
_PLACED_HEAD = Struct(">ii4xi4xqqi44xi")
_SYS_FLAGS_REFUSED = FLAG_BORN_HOST_V6 | FLAG_STORE_HOST_V6


def is_proven(data: bytes, queue: ConsumeQueue, queue_offset: int, entry: Entry) -> bool:
    """Whether a whole record stands at the beginning of `data`, the one that the entry means, with the entry's hash."""
    return all_proven(queue, queue_offset, CQ_ENTRY.pack(*entry), data)


def all_proven(queue: ConsumeQueue, queue_offset: int, entries: bytes, data: bytes) -> bool:
    """Whether every record proves itself, as they lie end to end in `data`, and so does its entry."""
    at, end, view = 0, len(data), memoryview(data)
    topic_field, topic_bytes = queue.topic_field, len(queue.topic_field)
    for log_offset, size, code in CQ_ENTRY.iter_unpack(entries):
        next_at = at + size
        if size < RECORD_BYTES_MIN or next_at > end:
            return False
        found_size, magic, queue_id, found_offset, place, sys_flag, body_size = _PLACED_HEAD.unpack_from(data, at)
        topic_at, sealed_end = at + BODY_AT + body_size, next_at - CRC_BYTES
        topic_end = topic_at + topic_bytes
        properties_at = topic_end + _LENGTH_BYTES
        if (
            found_size != size
            or magic != MESSAGE_MAGIC
            or queue_id != queue.queue_id
            or found_offset != queue_offset
            or place != log_offset
            or sys_flag & _SYS_FLAGS_REFUSED
            or body_size < 0
            or data[topic_at:topic_end] != topic_field
            or data[sealed_end:next_at] != crc_property(zlib.crc32(view[at:sealed_end]))
            or properties_at > sealed_end
            or data[topic_end] << 8 | data[topic_end + 1] != next_at - properties_at
            or not (queue.keeps_due_times or code == tag_hash(data, properties_at, next_at))
        ):
            return False
        at = next_at
        queue_offset += 1
    return True
