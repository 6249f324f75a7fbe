"""Damaged bytes in the log: found, put aside, told once, and no other message suffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from hourglass.mq.v1 import admin_service_pb2 as pb
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.rpc.admin_service import AdminService
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import STORE_ROOT, incoming, produce, producer_record, read_all, running_broker, store_options
from mqproto.codes import ResponseCode
from mqproto.record import Record
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file

FILE_BYTES = 4_096
LAYOUT = StoreLayout(STORE_ROOT)
COUNT = 21  # messages, in two queues; three files of the log
OPTIONS = store_options(log_file_bytes=FILE_BYTES)


def body(number: int) -> bytes:
    return SeededRng(number).randbytes(100 + number * 37 % 500)


def message(number: int, *, queue_id: int | None = None) -> IncomingBatch:
    queue_id = number % 2 if queue_id is None else queue_id
    record = producer_record("topic", body(number), queue_id=queue_id, tag="red", key=f"k{number}")
    return IncomingBatch("topic", queue_id, 1, record)


@dataclass(frozen=True)
class Message:
    """Where one message stands."""

    number: int
    log_offset: int
    size: int


async def live(disk: SimDisk, *, clean_stop: bool) -> list[Message]:
    """Fill a store; where its messages stand, in the order of the log."""
    found: list[Message] = []
    async with running_broker(disk, SimClock(), store=OPTIONS, clean_stop=clean_stop) as broker:
        for number in range(COUNT):
            (outcome,) = await produce(broker, message(number))
            assert outcome.code is ResponseCode.SUCCESS
            size = broker.store.log_end - outcome.base_log_offset
            found.append(Message(number, outcome.base_log_offset, size))
        assert len(broker.store.log.files.starts) >= 3
    disk.kill()
    return found


def in_log(disk: SimDisk, log_offset: int, size: int) -> bytes:
    data = read_file(disk, LAYOUT.commit_log / f"{log_offset // FILE_BYTES * FILE_BYTES:020d}")
    return data[log_offset % FILE_BYTES :][:size]


def overwrite(disk: SimDisk, log_offset: int, data: bytes) -> None:
    """Change these bytes of the log, durably."""
    file = disk.open(LAYOUT.commit_log / f"{log_offset // FILE_BYTES * FILE_BYTES:020d}")
    file.pwrite(data, log_offset % FILE_BYTES)
    file.sync_data()


def flip(disk: SimDisk, log_offset: int, count: int = 1) -> None:
    overwrite(disk, log_offset, bytes(byte ^ 0xA5 for byte in in_log(disk, log_offset, count)))


def lose(*names: str) -> Callable[[SimDisk], None]:
    def lose_them(disk: SimDisk) -> None:
        for name in names:
            disk.remove_tree(STORE_ROOT / name)
            disk.remove_tree(STORE_ROOT / f"{name}.bak")

    return lose_them


# How the damage is found: (clean stop, damage comes after the start, what else is lost)
WAYS: dict[str, tuple[bool, bool, Callable[[SimDisk], None]]] = {
    "by a cold read": (True, True, lose()),
    "by a cold read after a kill": (False, True, lose()),
    "at a start after a kill": (False, False, lose()),
    "at a clean start": (True, False, lose()),
    "without checkpoint": (True, False, lose("checkpoint")),
    "without watermark": (True, False, lose("watermark")),
    "without queues": (True, False, lose("consumequeue")),
    "without state": (True, False, lose("config")),
    "with the log alone": (True, False, lose("checkpoint", "watermark", "consumequeue", "config", "index", "abort")),
}
PLACES: dict[str, Callable[[Sequence[Message]], Message]] = {
    "first": lambda messages: messages[0],
    "middle": lambda messages: messages[10],
    "last": lambda messages: messages[-1],
    "last of a file": lambda messages: [one for one in messages if one.log_offset < FILE_BYTES][-1],
    "first of a file": lambda messages: next(one for one in messages if one.log_offset >= FILE_BYTES),
}
# Where in a record, by what it is there; negative counts from its end.
PARTS = {
    "size": 3, "magic": 4, "body CRC": 8, "queue id": 15, "flag": 17, "queue offset": 27, "physical offset": 35,
    "sysflag": 39, "born time": 45, "store time": 60, "store host": 66, "reconsume times": 75, "prepared offset": 80,
    "body size": 87, "body": 100, "topic size": -72, "topic": -70, "properties": -50, "CRC name": -18, "CRC digits": -8,
    "last byte": -1,
}  # fmt: skip
# When the last bytes of the log are gone, these cannot know that there were any, or which numbers they had.
KNOW_NO_TAIL = ("without queues", "with the log alone")
TELLING_PARTS = ("size", "queue offset", "body")


async def records_of(broker: Broker) -> dict[int, Record]:
    """What consumers of both queues read, by message number; each in its place."""
    found: dict[int, Record] = {}
    for queue_id in (0, 1):
        records = await read_all(broker, "topic", queue_id)
        assert [record.queue_offset for record in records] == sorted({record.queue_offset for record in records})
        for record in records:
            number = 2 * record.queue_offset + queue_id
            found[number] = record
            if number < COUNT:
                assert record.body == body(number)
    return found


async def status(broker: Broker) -> list[tuple[int, int]]:
    answer = await AdminService(broker, cast(Any, None), dict).GetBrokerStatus(pb.GetBrokerStatusRequest(), None)
    return [(one.log_offset, one.size) for one in answer.store.damaged]


def put_aside(disk: SimDisk) -> dict[tuple[int, int], bytes]:
    found = {}
    for name in disk.list_dir(LAYOUT.quarantine):
        assert not name.endswith((".tmp", ".tail"))
        at, size = map(int, name.split("-"))
        found[at, size] = read_file(disk, LAYOUT.quarantine / name)
    return found


def reports(caplog: pytest.LogCaptureFixture) -> int:
    return sum("the log is damaged" in record.message for record in caplog.records)


async def assert_only_lost(
    disk: SimDisk, messages: list[Message], lost: set[int], way: str, damage: Callable[[], None], log: Any
) -> None:
    """After the damage, found in this way: everything but `lost` is read, for ever, and the loss is told once."""
    _, later, lose_more = WAYS[way]
    lose_more(disk)
    wanted = set(range(COUNT)) - lost
    if not later:
        damage()
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        if later:
            damage()
        for _ in range(2):
            assert set(await records_of(broker)) == wanted
        for number in (COUNT, COUNT + 1):
            (outcome,) = await produce(broker, message(number))
            assert (outcome.code, outcome.base_queue_offset) == (ResponseCode.SUCCESS, number // 2)
        assert set(await records_of(broker)) == wanted | {COUNT, COUNT + 1}
        listed = await status(broker)
    copies = put_aside(disk)
    assert sorted(copies) == listed
    for at, size in listed:
        assert copies[at, size] == in_log(disk, at, size)
    for one in messages:
        if one.number in lost:
            assert any(at <= one.log_offset and one.log_offset + one.size <= at + size for at, size in listed)
        else:
            assert all(at + size <= one.log_offset or one.log_offset + one.size <= at for at, size in listed)
    assert reports(log) == len(listed)
    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        assert set(await records_of(broker)) == wanted | {COUNT, COUNT + 1}
        assert await status(broker) == listed
    assert (put_aside(disk), reports(log)) == (copies, len(listed))


_lived: dict[bool, tuple[SimDisk, list[Message]]] = {}  # by clean stop: the same for every test, which gets a copy


async def started(way: str) -> tuple[SimDisk, list[Message]]:
    clean_stop = WAYS[way][0]
    if clean_stop not in _lived:
        disk = SimDisk()
        _lived[clean_stop] = disk, await live(disk, clean_stop=clean_stop)
    disk, messages = _lived[clean_stop]
    return disk.fork(), messages


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("way", ["by a cold read", "at a start after a kill"])
async def test_any_damaged_part_of_a_message_costs_this_message_only(way: str, part: str, caplog: Any) -> None:
    disk, messages = await started(way)
    hit = messages[10]
    at = hit.log_offset + PARTS[part] % hit.size
    await assert_only_lost(disk, messages, {hit.number}, way, lambda: flip(disk, at), caplog)


@pytest.mark.parametrize("part", TELLING_PARTS)
@pytest.mark.parametrize(
    ("way", "place"),
    [(way, place) for way in WAYS for place in PLACES if place != "last" or way not in KNOW_NO_TAIL],
)
async def test_a_damaged_message_at_any_place_costs_this_message_only(
    way: str, place: str, part: str, caplog: Any
) -> None:
    disk, messages = await started(way)
    hit = PLACES[place](messages)
    at = hit.log_offset + PARTS[part] % hit.size
    await assert_only_lost(disk, messages, {hit.number}, way, lambda: flip(disk, at), caplog)


@pytest.mark.parametrize("parts", [("body", "body"), ("size", "size"), ("CRC digits", "magic")])
@pytest.mark.parametrize(
    ("way", "first"),
    [(way, first) for way in WAYS for first in (0, 7, COUNT - 2) if first < 9 or way not in KNOW_NO_TAIL],
)
async def test_two_damaged_neighbours_cost_these_two_only(
    way: str, first: int, parts: tuple[str, str], caplog: Any
) -> None:
    disk, messages = await started(way)
    hit = messages[first : first + 2]

    def damage() -> None:
        for one, part in zip(hit, parts, strict=True):
            flip(disk, one.log_offset + PARTS[part] % one.size)

    await assert_only_lost(disk, messages, {one.number for one in hit}, way, damage, caplog)


@pytest.mark.parametrize("content", ["noise", "zeros"])
@pytest.mark.parametrize(
    ("way", "sector"),
    [(way, sector) for way in WAYS for sector in (0, 3, 11, "last") if sector != "last" or way not in KNOW_NO_TAIL],
)
async def test_a_damaged_sector_costs_the_messages_in_it_only(
    way: str, sector: int | str, content: str, caplog: Any
) -> None:
    disk, messages = await started(way)
    end = messages[-1].log_offset + messages[-1].size
    at = ((end - 1) // 512 if sector == "last" else cast(int, sector)) * 512
    data = bytes(512) if content == "zeros" else SeededRng(9).randbytes(512)
    hit = {one.number for one in messages if one.log_offset < at + 512 and at < one.log_offset + one.size}
    assert hit
    await assert_only_lost(disk, messages, hit, way, lambda: overwrite(disk, at, data[: end - at]), caplog)


@pytest.mark.parametrize("part", [0, 3, 4, 7])
@pytest.mark.parametrize("way", WAYS)
async def test_a_damaged_blank_costs_no_message(way: str, part: int, caplog: Any) -> None:
    disk, messages = await started(way)
    last = [one for one in messages if one.log_offset < FILE_BYTES][-1]
    blank = last.log_offset + last.size
    assert blank < FILE_BYTES
    await assert_only_lost(disk, messages, set(), way, lambda: flip(disk, blank + part), caplog)


@pytest.mark.parametrize("way", WAYS)
async def test_a_whole_file_of_zeros_costs_its_messages_only(way: str, caplog: Any) -> None:
    disk, messages = await started(way)
    hit = {one.number for one in messages if FILE_BYTES <= one.log_offset < 2 * FILE_BYTES}
    await assert_only_lost(disk, messages, hit, way, lambda: overwrite(disk, FILE_BYTES, bytes(FILE_BYTES)), caplog)


@pytest.mark.parametrize("seed", range(12))
async def test_damage_upon_damage_costs_only_what_was_hit(seed: int, caplog: Any) -> None:
    """Several lives, each with some damage of its own, found now by a reader and now at a start."""
    rng, disk = SeededRng(seed), SimDisk()
    messages = await live(disk, clean_stop=rng.random() < 0.5)
    lost: set[int] = set()
    for _ in range(4):
        hits = [rng.choice(messages) for _ in range(rng.randrange(1, 3))]
        lost |= {one.number for one in hits}
        if rng.random() < 0.3:
            disk.remove_tree(STORE_ROOT / rng.choice(["checkpoint", "consumequeue", "watermark"]))
        damage_first, clean_stop = rng.random() < 0.5, rng.random() < 0.5
        for one in hits if damage_first else ():
            overwrite(disk, one.log_offset + rng.randrange(0, one.size - 8), rng.randbytes(8))
        async with running_broker(disk, SimClock(), store=OPTIONS, clean_stop=clean_stop) as broker:
            for one in () if damage_first else hits:
                overwrite(disk, one.log_offset + rng.randrange(0, one.size - 8), rng.randbytes(8))
            assert set(await records_of(broker)) == set(range(COUNT)) - lost
        disk.kill()
        caplog.clear()


async def test_a_copy_that_the_disk_rejects_is_told_and_the_reader_goes_on(caplog: Any) -> None:
    disk, messages = await started("by a cold read")

    def full(call: str, path: Path) -> None:
        if path.is_relative_to(LAYOUT.quarantine):
            raise OSError(28, "No space left on device")

    async with running_broker(disk, SimClock(), store=OPTIONS) as broker:
        flip(disk, messages[4].log_offset + 90)
        disk.before = full
        assert set(await records_of(broker)) == set(range(COUNT)) - {4}
        assert await status(broker) == [(messages[4].log_offset, messages[4].size)]
        assert "could not be copied" in caplog.text
        assert broker.store.failure is None
        (outcome,) = await produce(broker, incoming("other", [b"x"]))
        assert outcome.code is ResponseCode.SUCCESS
        disk.before = lambda call, path: None
