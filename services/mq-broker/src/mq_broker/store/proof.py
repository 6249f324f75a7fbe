"""What a record from disk has to prove before it is handed on."""

from __future__ import annotations

from struct import Struct

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.tag_filter import tag_hash
from mq_broker.store.consume_queue import ConsumeQueue
from mqproto.record import BODY_AT, MESSAGE_MAGIC, RECORD_BYTES_MIN, is_sealed

Entry = tuple[int, int, int]  # log offset, size, tag hash

_PLACED_HEAD = Struct(">ii4xi4xqq48xi")  # size, magic, queue id, queue offset, physical offset, body size


def all_proven(queue: ConsumeQueue, offset: int, entries: bytes, data: bytes) -> bool:
    """Whether every record proves itself, as they lie end to end in `data`, and so does its entry."""
    at = 0
    for entry in CQ_ENTRY.iter_unpack(entries):
        if not is_proven(data, queue, offset, entry, at=at):
            return False
        at += entry[1]
        offset += 1
    return True


def is_proven(data: bytes, queue: ConsumeQueue, queue_offset: int, entry: Entry, *, at: int = 0) -> bool:
    """Whether a whole record stands at `at` of `data`, the one that the entry means, and the entry's hash is its."""
    log_offset, size, code = entry
    if not RECORD_BYTES_MIN <= size <= len(data) - at:
        return False
    found_size, magic, queue_id, found_offset, place, body_size = _PLACED_HEAD.unpack_from(data, at)
    if (found_size, magic, queue_id, found_offset, place) != (
        size, MESSAGE_MAGIC, queue.queue_id, queue_offset, log_offset,
    ):  # fmt: skip
        return False
    topic_at = at + BODY_AT + body_size
    properties_at = topic_at + len(queue.topic_field) + 2
    if body_size < 0 or data[topic_at : properties_at - 2] != queue.topic_field or not is_sealed(data, at, size):
        return False
    return queue.keeps_due_times or code == tag_hash(data, properties_at, at + size)
