"""The entries of the journal of consumers' progress, as bytes (FORMAT.md, "Journal of progress").

Invariant: what `scan` gives is what was encoded: an entry whose CRC does not match is none.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from mq_broker.core.progress import Progress, Range

MAGIC = b"HPRG"
_HEAD = Struct(">4sI")  # magic, CRC of what follows
_BODY = Struct(">IqiqqIII")  # size, data version, queue id, offset, version, ranges, bytes of topic and group
_RANGE = Struct(">qq")
_FIXED_BYTES = _HEAD.size + _BODY.size
_NO_OFFSET = -1  # stands for: the group has no offset there any more


class Entry(NamedTuple):
    """At this data version the group had come so far; `progress` is None when it has no offset any more."""

    data_version: int
    group: str
    topic: str
    queue_id: int
    progress: Progress | None


@dataclass(slots=True)
class Scan:
    """What stands in a journal's file; `damages` are stretches (at, size) before whole entries, `torn` bytes behind."""

    entries: list[Entry] = field(default_factory=list)
    damages: list[tuple[int, int]] = field(default_factory=list)
    torn: int = 0


def encode_entry(entry: Entry) -> bytes:
    """The entry's bytes."""
    topic, group = entry.topic.encode(), entry.group.encode()
    offset, ranges, version = _NO_OFFSET, tuple[Range, ...](), 0
    if entry.progress is not None:
        offset, ranges, version = entry.progress.offset, entry.progress.ranges, entry.progress.version
    size = _FIXED_BYTES + len(topic) + len(group) + len(ranges) * _RANGE.size
    body = b"".join(
        [
            _BODY.pack(size, entry.data_version, entry.queue_id, offset, version, len(ranges), len(topic), len(group)),
            topic,
            group,
            *(_RANGE.pack(*one) for one in ranges),
        ]
    )
    return _HEAD.pack(MAGIC, zlib.crc32(body)) + body


def scan(data: bytes) -> Scan:
    """Every whole entry, in order, and what is none."""
    found, at, end = Scan(), 0, 0  # everything before `end` is accounted for
    while (at := data.find(MAGIC, at)) >= 0:
        decoded = _decode(data, at)
        if decoded is None:
            at += 1
            continue
        if at > end:
            found.damages.append((end, at - end))
        entry, size = decoded
        found.entries.append(entry)
        at = end = at + size
    found.torn = len(data) - end
    return found


def _decode(data: bytes, at: int) -> tuple[Entry, int] | None:
    """The entry that begins there, and its size; None when there is no whole one."""
    if at + _FIXED_BYTES > len(data):
        return None
    _, crc = _HEAD.unpack_from(data, at)
    body_at = at + _HEAD.size
    size, data_version, queue_id, offset, version, count, topic_bytes, group_bytes = _BODY.unpack_from(data, body_at)
    topic_at = at + _FIXED_BYTES
    group_at = topic_at + topic_bytes
    ranges_at = group_at + group_bytes
    end = at + size
    if end > len(data) or ranges_at + count * _RANGE.size != end or zlib.crc32(data[body_at:end]) != crc:
        return None
    try:
        topic, group = data[topic_at:group_at].decode(), data[group_at:ranges_at].decode()
        progress = None
        if offset != _NO_OFFSET:
            progress = Progress(offset, tuple(_RANGE.iter_unpack(data[ranges_at:end])), version)
            progress.check()
    except ValueError:
        return None
    return Entry(data_version, group, topic, queue_id, progress), size
