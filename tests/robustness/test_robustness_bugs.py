"""The shortest story for each bug of the zoo that no other test tells; zoo_bugs.py puts them back."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest
from flip_check import find
from flip_store import opened

from mq_broker.core.consumer_offsets import Progress
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import BatchOutcome, IncomingBatch
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.testing import STORE_ROOT, broker_options, incoming, produce, producer_record, read_all
from mqproto.record import CRC_BYTES, CRC_PLACEHOLDER, encode_record, is_sealed, seal
from osenv import RealDisk, SeededRng, SimClock, SimDisk
from osenv.disk import read_file

FILE_BYTES = 64 * 1024
LAYOUT = StoreLayout(STORE_ROOT, FILE_BYTES, 100, IndexSize(slots=50, entries=200))
FIRST_FILE = LAYOUT.commit_log / ("0" * 20)


def options(root: Path = STORE_ROOT) -> StoreOptions:
    layout = StoreLayout(root, FILE_BYTES, 100, IndexSize(slots=50, entries=200))
    return StoreOptions(layout, FlushDiskType.SYNC_FLUSH, 200, "127.0.0.1", 10_911)


def worst_power_cut(disk: SimDisk) -> SimDisk:
    """The disk on which nothing is left that was not synced."""
    return next(disk.lost_states(SeededRng(0)))


def bodies(count: int, size: int = 1_000, first: int = 0) -> list[bytes]:
    return [b"%06d" % number + bytes(size - 6) for number in range(first, first + count)]


async def stored(broker: Broker, queue_id: int = 0) -> list[bytes]:
    return [record.body for record in await read_all(broker, "t", queue_id)]


async def test_an_acknowledgement_covers_both_sides_of_a_roll_over() -> None:
    """Bugs 3 and 15: one of the files was not synced, or the new one's name was not."""
    disk, wanted = SimDisk(), bodies(100)
    async with opened(disk, SimClock(), options(), clean_stop=False) as broker:
        for at in range(0, 50, 10):
            await produce(broker, incoming("t", wanted[at : at + 10]))
        outcomes = [
            outcome
            for at in range(50, 100, 10)
            for outcome in broker.producing.put([incoming("t", wanted[at : at + 10])])
        ]
        await broker.producing.acknowledge(outcomes, broker.store.log_end)
        assert broker.store.log_end > FILE_BYTES
    async with opened(worst_power_cut(disk), SimClock(), options()) as broker:
        assert await stored(broker) == wanted


def record_with_crc_0() -> bytes:
    """A sealed record whose CRC is 0: 64 bits of its body are chosen so, by elimination, for a CRC is linear."""

    def made(bits: int) -> bytearray:
        body = bits.to_bytes(8, "big")
        return bytearray(
            encode_record(topic=b"t", body=body, properties=b"", queue_id=0, born_timestamp_ms=1, born_ip=1)
        )

    def crc(bits: int) -> int:
        record = made(bits)
        seal(record, 0, len(record))
        return int(bytes(record[-CRC_BYTES + 9 : -1])[::-1])

    wanted, chosen = crc(0), 0
    basis: list[tuple[int, int]] = []  # (what it changes of the CRC, by which bits of the body)
    for bit in range(64):
        change, bits = crc(1 << bit) ^ crc(0), 1 << bit
        for other_change, other_bits in basis:
            if change ^ other_change < change:
                change, bits = change ^ other_change, bits ^ other_bits
        if change:
            basis.append((change, bits))
            basis.sort(reverse=True)
    for change, bits in basis:
        if wanted ^ change < wanted:
            wanted, chosen = wanted ^ change, chosen ^ bits
    assert wanted == 0
    record = made(chosen)
    seal(record, 0, len(record))
    return bytes(record)


def test_a_record_whose_crc_is_0_is_as_good_as_any() -> None:
    """Bug 5 (#9121)."""
    record = record_with_crc_0()
    assert record.endswith(CRC_PLACEHOLDER)
    assert is_sealed(record, 0, len(record))
    assert not is_sealed(record[:30] + b"\1" + record[31:], 0, len(record))


async def test_a_whole_record_that_belongs_elsewhere_is_not_taken_for_one() -> None:
    """Bug 6 (#10017): stale bytes behind the end, whole and with the right queue offset, of another place."""
    disk = SimDisk()
    async with opened(disk, SimClock(), options(), clean_stop=False) as broker:
        await produce(broker, incoming("t", bodies(3)))
        end = broker.store.log_end
        await produce(broker, incoming("t", bodies(1, first=3)))
    record = bytearray(read_file(disk, FIRST_FILE)[end : broker.store.log_end])
    record[28:36] = (end + FILE_BYTES).to_bytes(8, "big")
    seal(record, 0, len(record))
    disk.kill()
    disk.open(FIRST_FILE).pwrite(record, end)
    disk.remove_tree(LAYOUT.watermark)
    async with opened(disk, SimClock(), options()) as broker:
        assert await stored(broker) == bodies(3)


async def test_a_flipped_bit_in_the_middle_of_the_log_costs_one_record() -> None:
    """Bug 7."""
    disk = SimDisk()
    async with opened(disk, SimClock(), options(), clean_stop=False) as broker:
        outcomes = await produce(broker, *(incoming("t", [body]) for body in bodies(10)))
    disk.kill()
    at = outcomes[4].base_log_offset + 200
    disk.open(FIRST_FILE).pwrite(bytes((read_file(disk, FIRST_FILE)[at] ^ 1,)), at)
    async with opened(disk, SimClock(), options()) as broker:
        assert await stored(broker) == [*bodies(4), *bodies(5, first=5)]
        (outcome,) = await produce(broker, incoming("t", bodies(1, first=10)))
        assert outcome.base_queue_offset == 10
        assert list(broker.store.quarantine) == [(outcomes[4].base_log_offset, outcomes[5].base_log_offset - at + 200)]


async def test_a_tail_that_was_cut_off_never_comes_back() -> None:
    """Bug 8 (#10666): of three records the first is torn, the others are whole; then a new one takes its place."""
    disk, clock = SimDisk(), SimClock()
    async with opened(disk, clock, options(), clean_stop=False) as broker:
        await produce(broker, incoming("t", bodies(1)))
        end = broker.store.log_end
        broker.producing.put([incoming("t", bodies(3, first=1))])
        found = disk.fork()  # nothing of the three was synced yet
    found.kill()
    found.open(FIRST_FILE).pwrite(bytes(200), end)
    async with opened(found, clock, options(), clean_stop=False) as broker:
        assert await stored(broker) == bodies(1)
        await produce(broker, incoming("t", bodies(1, first=4)))
    async with opened(worst_power_cut(found), clock, options(), clean_stop=False) as broker:
        assert await stored(broker) == [*bodies(1), *bodies(1, first=4)]
    found.kill()
    async with opened(found, clock, options()) as broker:
        assert await stored(broker) == [*bodies(1), *bodies(1, first=4)]


async def test_what_a_checkpoint_counts_is_on_disk_before_it(caplog: pytest.LogCaptureFixture) -> None:
    """Bug 9 (#678, #10073): after a power cut nothing needs to be rebuilt."""
    disk, clock = SimDisk(), SimClock()
    async with opened(disk, clock, options(), clean_stop=False) as broker:
        await produce(broker, *(incoming("t", bodies(20), queue_id=queue_id) for queue_id in (0, 1)))
        await broker.store.checkpoint()
        end = broker.store.log_end
        await produce(broker, incoming("t", bodies(3, first=20)))
    with caplog.at_level(logging.INFO, "mq_broker"):
        async with opened(worst_power_cut(disk), clock, options()) as broker:
            assert await stored(broker) == bodies(23)
    assert f"read again: 3 records from {end}" in caplog.text
    assert "rebuilding" not in caplog.text


async def test_recovery_begins_at_an_offset_and_not_at_a_time() -> None:
    """Bug 10: everything carries one timestamp, before the checkpoint and after it, over several files."""
    disk, clock = SimDisk(), SimClock()
    wanted = bodies(300)
    async with opened(disk, clock, options(), clean_stop=False) as broker:
        for at in range(0, 300, 10):
            if at == 20:
                await broker.store.checkpoint()
            await produce(broker, incoming("t", wanted[at : at + 10]))
        assert broker.store.log_end > 4 * FILE_BYTES
    disk.kill()
    async with opened(disk, clock, options()) as broker:
        assert await stored(broker) == wanted


async def test_lost_consume_queues_are_told_again_by_every_file_of_the_log() -> None:
    """Bug 11 (#1434)."""
    disk, wanted = SimDisk(), bodies(300)
    async with opened(disk, SimClock(), options()) as broker:
        for at in range(0, 300, 10):
            await produce(broker, incoming("t", wanted[at : at + 10]))
    disk.remove_tree(LAYOUT.consume_queues)
    async with opened(disk, SimClock(), options()) as broker:
        assert await stored(broker) == wanted


async def test_keys_from_before_the_checkpoint_are_found_after_a_kill() -> None:
    """Bug 12 (#8007): the index before the crash is kept, or told again from the beginning."""
    disk, clock = SimDisk(), SimClock()
    keys, outcomes = [f"key-{number}" for number in range(150)], list[BatchOutcome]()
    async with opened(disk, clock, options(), clean_stop=False) as broker:
        for number, key in enumerate(keys):
            outcomes += await produce(broker, IncomingBatch("t", 0, 1, producer_record("t", b"x", key=key)))
            if number == 100:
                await clock.advance(0)
                await broker.store.checkpoint()
    disk.kill()
    async with opened(disk, clock, options()) as broker:
        for key, outcome in zip(keys, outcomes, strict=True):
            assert await find(broker, "t", key) == [outcome.base_log_offset], key


def test_a_file_of_the_log_has_all_its_blocks_from_the_beginning(tmp_path: Path) -> None:
    """Bug 16: a sparse file would run out of disk in the middle of a write, and a mapped one would kill the process."""
    disk = RealDisk()
    try:
        broker = Broker(disk, SimClock(), broker_options(), options(tmp_path))
        broker.store.open(lambda _record: None)
        broker.store.release()
    finally:
        disk.close()
    files = sorted((tmp_path / "commitlog").iterdir())
    assert files
    for file in files:
        status = file.stat()
        assert status.st_size == FILE_BYTES
        assert status.st_blocks * 512 >= FILE_BYTES


@pytest.mark.parametrize("lost", [None, LAYOUT.checkpoint, LAYOUT.config], ids=["nothing", "checkpoint", "config"])
async def test_offsets_of_a_queue_go_on_when_all_of_its_messages_have_been_deleted(lost: Path | None) -> None:
    """Bug 23 (#7689): also when the consume queues are built anew of a log that has no message of the queue left."""
    disk, clock = SimDisk(), SimClock()
    async with opened(disk, clock, options()) as broker:
        await produce(broker, incoming("t", bodies(30)))
        broker.offsets.commit("g", [("t", 0, Progress(30))])
        for at in range(0, 200, 10):
            await produce(broker, incoming("t", bodies(10, first=at), queue_id=1))
        disk.used_share = 0.86  # from 0.85 on the oldest files go
        deleting = asyncio.create_task(broker.retention.round())
        await clock.advance(10)
        await deleting
        assert broker.store.log_begin > FILE_BYTES
        assert broker.store.queue_bounds("t", 0) == (30, 30)
    if lost is not None:
        disk.remove_tree(lost)
    async with opened(disk, clock, options()) as broker:
        (outcome,) = await produce(broker, incoming("t", [b"next"]))
        assert outcome.base_queue_offset == 30
        assert await stored(broker) == [b"next"]
