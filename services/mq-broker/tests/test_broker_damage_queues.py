"""Damaged consume queues: the log decides what an entry says, and a number once given belongs to its message."""

from __future__ import annotations

import pytest

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import STORE_ROOT, produce, producer_record, read_all, running_broker, store_options
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file

FILE_BYTES = 4_096
LAYOUT = StoreLayout(STORE_ROOT)
OPTIONS = store_options(log_file_bytes=FILE_BYTES)
QUEUE_FILE = LAYOUT.consume_queue("t", 0) / ("0" * 20)
COUNT = 20
SIZE = CQ_ENTRY.size


def message(number: int, *, queue_id: int = 0) -> IncomingBatch:
    record = producer_record("t", b"%d" % number + bytes(200), queue_id=queue_id, tag="red", key=f"k{number}")
    return IncomingBatch("t", queue_id, 1, record)


async def live(disk: SimDisk, *, clean_stop: bool = True) -> bytes:
    """Fill a queue, with another one in between; what its file says."""
    async with running_broker(disk, SimClock(), store=OPTIONS, clean_stop=clean_stop) as broker:
        for number in range(COUNT):
            for queue_id in (0, 1):
                (outcome,) = await produce(broker, message(number, queue_id=queue_id))
                assert outcome.code is ResponseCode.SUCCESS
    disk.kill()
    return read_file(disk, QUEUE_FILE)


def overwrite(disk: SimDisk, at: int, data: bytes) -> None:
    file = disk.open(QUEUE_FILE)
    file.pwrite(data, at)
    file.sync_data()


async def numbers(broker: Broker, tag: str = "*") -> list[int]:
    records = await read_all(broker, "t", 0, tag)
    assert [record.queue_offset for record in records] == sorted({record.queue_offset for record in records})
    return [int(record.body.rstrip(b"\0")) for record in records]


ENTRIES = {"first": 0, "middle": 9, "last": COUNT - 1}


@pytest.mark.parametrize("byte", range(SIZE))
@pytest.mark.parametrize("place", ENTRIES)
async def test_a_damaged_entry_is_mended_from_the_log_on_disk_too(place: str, byte: int) -> None:
    disk = SimDisk()
    wanted = await live(disk)
    at = ENTRIES[place] * SIZE + byte
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        overwrite(disk, at, bytes([wanted[at] ^ 0xA5]))
        assert await numbers(broker, "red") == list(range(COUNT))
        assert await numbers(broker) == list(range(COUNT))
        assert read_file(disk, QUEUE_FILE) == wanted
        assert len(broker.store.quarantine) == 0
    assert read_file(disk, QUEUE_FILE) == wanted
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        assert await numbers(broker, "red") == list(range(COUNT))


@pytest.mark.parametrize("clean_stop", [True, False], ids=["clean stop", "kill"])
@pytest.mark.parametrize("byte", range(0, SIZE, 3))
async def test_an_entry_damaged_before_the_start_costs_nothing(byte: int, clean_stop: bool) -> None:
    for place in ENTRIES.values():
        disk = SimDisk()
        wanted = await live(disk, clean_stop=clean_stop)
        at = place * SIZE + byte
        overwrite(disk, at, bytes([wanted[at] ^ 0xA5]))
        async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
            assert await numbers(broker, "red") == list(range(COUNT))
            (outcome,) = await produce(broker, message(COUNT))
            assert outcome.base_queue_offset == COUNT
            assert await numbers(broker) == list(range(COUNT + 1))
            await broker.store.checkpoint()
            assert read_file(disk, QUEUE_FILE)[: len(wanted.rstrip(b"\0"))] == wanted.rstrip(b"\0")


@pytest.mark.parametrize(
    ("first", "count"), [(0, 1), (0, 20), (3, 5), (15, 5), (19, 1)], ids=["one", "all", "some", "the end", "the last"]
)
@pytest.mark.parametrize("content", ["zeros", "noise", "another queue's", "shifted by one", "all the same"])
async def test_a_damaged_run_of_entries_is_mended_from_the_log(content: str, first: int, count: int) -> None:
    disk = SimDisk()
    wanted = await live(disk)
    other = read_file(disk, LAYOUT.consume_queue("t", 1) / ("0" * 20))
    here = slice(first * SIZE, (first + count) * SIZE)
    data = {
        "zeros": bytes(count * SIZE),
        "noise": SeededRng(4).randbytes(count * SIZE),
        "another queue's": other[here],
        "shifted by one": wanted[here.start + SIZE : here.stop + SIZE],
        "all the same": wanted[10 * SIZE : 11 * SIZE] * count,
    }[content]
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        overwrite(disk, here.start, data)
        assert await numbers(broker) == list(range(COUNT))
        assert read_file(disk, QUEUE_FILE) == wanted
        assert len(broker.store.quarantine) == 0


async def test_a_start_anywhere_finds_the_same_messages_past_damaged_entries() -> None:
    for offset in range(COUNT):
        disk = SimDisk()
        wanted = await live(disk)
        async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
            for place in (4, 5, 11):
                overwrite(disk, place * SIZE, SeededRng(place).randbytes(SIZE))
            queue = broker.store.queue("t", 0)
            assert queue is not None
            found, at = list[int](), offset
            while at < COUNT:
                records, scanned = await broker.store.reader.read_queue(queue, at, COUNT)
                found += [record.queue_offset for record in records]
                at += scanned
            assert found == list(range(offset, COUNT))
            assert await numbers(broker) == list(range(COUNT))
            assert read_file(disk, QUEUE_FILE) == wanted


@pytest.mark.parametrize("clean_stop", [True, False], ids=["clean stop", "kill"])
@pytest.mark.parametrize("lost", [1, 2, 7, 2 * COUNT])
async def test_numbers_of_a_tail_that_was_lost_to_damage_are_never_given_again(lost: int, clean_stop: bool) -> None:
    """Both queues lose what stood in the damaged end of the log; what was acknowledged keeps its number."""
    disk = SimDisk()
    async with running_broker(disk, SimClock(), store=OPTIONS, clean_stop=clean_stop) as broker:
        places = []
        for number in range(COUNT):
            for queue_id in (0, 1):
                places += await produce(broker, message(number, queue_id=queue_id))
        end = broker.store.log_end
    disk.kill()
    begin = places[-lost].base_log_offset
    for at in range(begin, end):
        path = LAYOUT.commit_log / f"{at // FILE_BYTES * FILE_BYTES:020d}"
        disk.open(path).pwrite(b"\xee", at % FILE_BYTES)
    for _ in range(2):
        async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
            left = (2 * COUNT - lost + 1) // 2
            assert [number for number in await numbers(broker) if number < COUNT] == list(range(left))
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        (outcome,) = await produce(broker, message(COUNT))
        assert outcome.base_queue_offset == COUNT
        assert await numbers(broker) == [*range(left), COUNT]


async def test_a_queue_folder_that_is_no_number_is_named_and_stops_the_start() -> None:
    disk = SimDisk()
    await live(disk)
    disk.make_dirs(LAYOUT.consume_queues / "t" / "old")
    with pytest.raises(Exception, match="a queue's folder is named by its number; move this away"):
        async with running_broker(disk, SimClock(), store=OPTIONS):
            raise AssertionError("it has started")


@pytest.mark.parametrize("name", ["readme", "1", "0" * 19, "0" * 21])
async def test_other_files_among_those_of_a_queue_and_of_the_log_are_left_alone(name: str) -> None:
    disk = SimDisk()
    await live(disk)
    strangers = [folder / name for folder in (QUEUE_FILE.parent, LAYOUT.commit_log, LAYOUT.quarantine)]
    for path in strangers:
        disk.make_dirs(path.parent)
        disk.open(path, create=True).pwrite(b"not yours", 0)
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        assert await numbers(broker) == list(range(COUNT))
        assert len(broker.store.quarantine) == 0
    assert [read_file(disk, path) for path in strangers] == [b"not yours"] * 3
