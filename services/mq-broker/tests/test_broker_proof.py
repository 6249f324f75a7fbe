"""A whole record proves nothing unless it is the one that was asked for (MISSION G5; ADR 14)."""

from __future__ import annotations

import pytest

from mq_broker.core.batches import CQ_ENTRY, check_batch, patch_batch
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.proof import all_proven, is_proven
from mq_broker.store.segment_files import SegmentFiles
from mq_broker.testing import STORE_ROOT, producer_record
from mqproto.record import BODY_BYTES_MAX
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
    assert is_proven(data, queue(), BASE_OFFSET, CQ_ENTRY.unpack_from(entries))


@pytest.mark.parametrize(
    ("asked", "offset"),
    [(queue(OTHER_TOPIC), BASE_OFFSET), (queue(queue_id=1), BASE_OFFSET), (queue(), BASE_OFFSET + 1)],
    ids=["another topic", "another queue", "another number"],
)
def test_whole_record_of_somebody_else_proves_nothing(asked: ConsumeQueue, offset: int) -> None:
    entries, data = stored()
    assert not all_proven(asked, offset, entries, data)


@pytest.mark.parametrize("number", range(3))
@pytest.mark.parametrize("field", ["log_offset", "size", "code"])
@pytest.mark.parametrize("by", [-1, 1])
def test_entry_that_does_not_fit_its_record_proves_nothing(number: int, field: str, by: int) -> None:
    entries, data = stored()
    assert not all_proven(queue(), BASE_OFFSET, changed(entries, number, **{field: by}), data)


def test_no_damaged_byte_and_no_missing_one_is_proven() -> None:
    entries, data = stored()
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        assert not all_proven(queue(), BASE_OFFSET, entries, bytes(damaged)), at
        assert not all_proven(queue(), BASE_OFFSET, entries, data[:at])
