"""A whole record proves nothing unless it is the one that was asked for (figure G5; ADR 14)."""

from __future__ import annotations

import pytest

from mq_broker.core.batches import CQ_ENTRY, check_batch, patch_batch
from mq_broker.store.commit_log import SegmentFiles
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.reader import all_proven, is_valid_entry
from mq_broker.testing import STORE_ROOT, producer_record
from mqproto.record import BODY_BYTES_MAX, RecordError, decode_record, seal
from osenv import PooledFiles, SimDisk

TOPIC, OTHER_TOPIC = "orders", "others"  # as long as each other
BASE_OFFSET, LOG_OFFSET = 5, 1_000


def queue(topic: str = TOPIC, queue_id: int = 0) -> ConsumeQueue:
    return ConsumeQueue(
        topic, queue_id, SegmentFiles(PooledFiles(SimDisk(), 1), STORE_ROOT, STORE_ROOT / "queue", 2_000)
    )


def stored() -> tuple[bytes, bytes]:
    """Three messages of queue 0 from BASE_OFFSET on: consume-queue entries and records."""
    records = b"".join(producer_record(TOPIC, body, tag="paid") for body in (b"a", b"bb", b"ccc"))
    batch = check_batch(TOPIC, 0, 3, records, BODY_BYTES_MAX)
    entries = patch_batch(
        batch, queue_offset=BASE_OFFSET, log_offset=LOG_OFFSET, store_ms=1, store_ip=0, store_port=10_911
    )
    return entries, bytes(batch.buffer)


def changed(entries: bytes, number: int, *, log_offset: int = 0, size: int = 0, code: int = 0) -> bytes:
    """One of the entries with something added to its fields."""
    at = number * CQ_ENTRY.size
    before = CQ_ENTRY.unpack_from(entries, at)
    entry = CQ_ENTRY.pack(before[0] + log_offset, before[1] + size, before[2] + code)
    return entries[:at] + entry + entries[at + CQ_ENTRY.size :]


def test_records_at_their_place_are_proven() -> None:
    entries, data = stored()
    assert all_proven(queue(), BASE_OFFSET, entries, data)
    assert is_valid_entry(data, queue(), BASE_OFFSET, CQ_ENTRY.unpack_from(entries))


@pytest.mark.parametrize(
    ("asked", "offset"),
    [(queue(OTHER_TOPIC), BASE_OFFSET), (queue(queue_id=1), BASE_OFFSET), (queue(), BASE_OFFSET + 1)],
    ids=["another topic", "another queue", "another number"],
)
def test_whole_record_of_another_queue_proves_nothing(asked: ConsumeQueue, offset: int) -> None:
    entries, data = stored()
    assert not all_proven(asked, offset, entries, data)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("field", ["log_offset", "size", "code"])
@pytest.mark.parametrize("by", [-1, 1])
def test_entry_that_does_not_fit_its_record_proves_nothing(number: int, field: str, by: int) -> None:
    entries, data = stored()
    assert not all_proven(queue(), BASE_OFFSET, changed(entries, number, **{field: by}), data)


@pytest.mark.parametrize(
    ("at", "patch"),
    [(36, b"\0\0\0\x10"), (36, b"\0\0\0\x20"), (88 + 1 + 1 + len(TOPIC), b"\0\x05"), (84, b"\0\0\0\xff")],
    ids=["IPv6 born host", "IPv6 store host", "another length of the properties", "another length of the body"],
)
def test_a_sealed_record_that_cannot_be_taken_apart_proves_nothing(at: int, patch: bytes) -> None:
    entries, data = stored()
    size = CQ_ENTRY.unpack_from(entries)[1]
    record = bytearray(data[:size])
    record[at : at + len(patch)] = patch
    seal(record, 0, size)
    with pytest.raises(RecordError):
        decode_record(bytes(record))
    assert not all_proven(queue(), BASE_OFFSET, entries[: CQ_ENTRY.size], bytes(record))


@pytest.mark.parametrize("left", range(4))
def test_a_sealed_record_without_room_for_its_lengths_proves_nothing(left: int) -> None:
    entries, data = stored()
    size = CQ_ENTRY.unpack_from(entries)[1]
    record = bytearray(data[:size])
    body_bytes = size - 20 - 1 - len(TOPIC) - left - 88  # the topic ends `left` bytes before the CRC property
    record[84:88] = body_bytes.to_bytes(4, "big")
    record[88 + body_bytes : size - 20 - left] = bytes((len(TOPIC),)) + TOPIC.encode()
    seal(record, 0, size)
    assert not all_proven(queue(), BASE_OFFSET, entries[: CQ_ENTRY.size], bytes(record))


def test_no_damaged_byte_and_no_missing_one_is_proven() -> None:
    entries, data = stored()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert not all_proven(queue(), BASE_OFFSET, entries, bytes(damaged)), at
        assert not all_proven(queue(), BASE_OFFSET, entries, data[:at])
