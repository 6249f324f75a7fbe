"""The index after a stop of any kind, and after any damage: what stands in the log is found by its keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.store.index import IndexSize
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.testing import BORN_IP, produce, running_broker, store_options
from mq_broker.tools.dump_log import DumpOptions
from mq_broker.tools.dump_log import dump as dump_log
from mqproto.properties import KEYS, UNIQ_KEY, encode_properties
from mqproto.record import decode_record, encode_record
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_clock import settle

SIZE = IndexSize(slots=8, entries=24)  # 23 keys a file: 11 messages and a half
SLOTS_AT, ENTRIES_AT = 40, 40 + 8 * 4
COUNT = 40


def options(flush: FlushDiskType = FlushDiskType.SYNC_FLUSH) -> StoreOptions:
    store = store_options(flush=flush)
    return replace(store, layout=replace(store.layout, index_size=SIZE))


FOLDER = options().layout.index


def numbered(count: int, first: int = 0) -> list[IncomingBatch]:
    """Messages with a key of their own, and one that every fifth has."""
    batches = []
    for number in range(first, first + count):
        properties = {KEYS: f"every{number % 5}", UNIQ_KEY: f"id{number}"}
        data = encode_record(
            topic=b"t",
            body=b"%d" % number,
            properties=encode_properties(properties),
            queue_id=0,
            born_timestamp_ms=1,
            born_ip=BORN_IP,
        )
        batches.append(IncomingBatch("t", 0, 1, data))
    return batches


async def find(broker: Broker, key: str) -> list[bytes]:
    found = await broker.querying.by_key("t", key, max_messages=2_000, begin_ms=0, end_ms=0)
    return [decode_record(data).body for data in found.records]


async def assert_all_found(broker: Broker) -> int:
    """Every key of every message that the queue holds finds it, and nothing more; how many there are."""
    await settle()
    assert broker.store.index.indexed_end == broker.store.log_end
    _, count = broker.store.queue_bounds("t", 0)
    for number in range(count):
        assert await find(broker, f"id{number}") == [b"%d" % number]
    for rest in range(5):
        assert await find(broker, f"every{rest}") == [b"%d" % n for n in reversed(range(count)) if n % 5 == rest]
    return count


async def assert_whole_again(disk: SimDisk, *, flush: FlushDiskType = FlushDiskType.SYNC_FLUSH) -> None:
    """After a start everything is found, after some more messages too, and once more after a clean stop."""
    async with running_broker(disk, SimClock(), store=options(flush)) as broker:
        count = await assert_all_found(broker)
        await produce(broker, *numbered(7, first=count))
        assert await assert_all_found(broker) == count + 7
    async with running_broker(disk, SimClock(), store=options(flush)) as broker:
        assert await assert_all_found(broker) == count + 7


async def work(disk: SimDisk, *, clean: bool, count: int = COUNT) -> None:
    """A life with a checkpoint every few messages, so that files fill up and are saved at all kinds of moments."""
    async with running_broker(disk, SimClock(), store=options(), clean_stop=clean) as broker:
        for number in range(0, count, 4):
            await produce(broker, *numbered(4, first=number))
            await settle()
            if number % 3 == 0:
                await broker.store.checkpoint()
    if not clean:
        disk.kill()


@contextmanager
def forks_of(disk: SimDisk, below: Path, every: int) -> Iterator[list[SimDisk]]:
    """The disk as it is before each `every`th call that touches something there, and after it."""
    forks: list[SimDisk] = []
    calls = 0

    def keep(call: str, path: Path) -> None:
        nonlocal calls
        if call in {"pwrite", "sync_data", "sync_dir", "truncate", "allocate", "open", "unlink"}:
            calls += path.is_relative_to(below)
            if path.is_relative_to(below) and calls % every == 0:
                forks.append(disk.fork())

    disk.before = disk.after = keep
    yield forks
    disk.before = disk.after = lambda call, path: None


async def test_clean_stop_reads_nothing_of_the_log_again() -> None:
    disk = SimDisk()
    await work(disk, clean=True)
    async with running_broker(disk, SimClock(), store=options()) as broker:
        assert broker.store.index.indexed_end == broker.store.log_end  # before another task had a turn
        await assert_all_found(broker)


async def test_kill_at_any_touch_of_the_index_loses_no_key() -> None:
    disk = SimDisk()
    with forks_of(disk, FOLDER, every=4) as forks:
        await work(disk, clean=False)
    assert len(forks) > 20
    for fork in forks:
        fork.kill()
        await assert_whole_again(fork)


async def test_power_cut_at_any_touch_of_the_index_loses_no_key() -> None:
    disk = SimDisk()
    with forks_of(disk, FOLDER, every=5) as forks:
        await work(disk, clean=False)
    assert len(forks) > 15
    for number, fork in enumerate(forks):
        fork.crash(SeededRng(number))
        await assert_whole_again(fork)


async def test_power_cut_while_slots_are_written_leaves_none_that_names_a_lost_entry() -> None:
    """Slots and entries lie in sectors of their own here, as in real files."""
    disk = SimDisk()
    store = replace(options(), layout=replace(options().layout, index_size=IndexSize(slots=1_000, entries=200)))
    async with running_broker(disk, SimClock(), store=store, clean_stop=False) as broker:
        await produce(broker, *numbered(20))
        await settle()
        await broker.store.checkpoint()
        await produce(broker, *numbered(20, first=20))
        await settle()
        save = broker.store.index.take_save()
        with forks_of(disk, FOLDER, every=1) as forks:
            save()
    for number, fork in enumerate(forks):
        for state in fork.lost_states(SeededRng(number), exhaustive_units_max=0, samples=6):
            async with running_broker(state, SimClock(), store=store) as broker:
                assert await assert_all_found(broker) == 40


@pytest.mark.parametrize("seed", range(6))
async def test_power_cut_under_async_flush_leaves_no_key_of_a_message_that_is_gone(seed: int) -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, store=options(FlushDiskType.ASYNC_FLUSH), clean_stop=False) as broker:
        for number in range(0, COUNT, 4):
            await produce(broker, *numbered(4, first=number))
            await clock.advance(0.07)
            if number % 12 == 0:
                await broker.store.checkpoint()
    disk.crash(SeededRng(seed))
    await assert_whole_again(disk, flush=FlushDiskType.ASYNC_FLUSH)


async def test_a_file_that_fills_while_the_index_is_saved_loses_no_key() -> None:
    disk = SimDisk()
    async with running_broker(disk, SimClock(), store=options()) as broker:
        await produce(broker, *numbered(5))
        await settle()
        save = broker.store.index.take_save()
        await produce(broker, *numbered(10, first=5))
        await settle()
        assert len(index_files(disk)) == 2
        save()
        broker.store.index.take_save()()
        assert await assert_all_found(broker) == 15
        await broker.store.checkpoint()
    await assert_whole_again(disk)


async def test_kill_while_the_index_is_told_again_loses_no_key() -> None:
    disk = SimDisk()
    await work(disk, clean=True)
    disk.remove_tree(FOLDER)
    with forks_of(disk, FOLDER, every=3) as forks:
        async with running_broker(disk, SimClock(), store=options()) as broker:
            await assert_all_found(broker)
    assert len(forks) > 5
    for fork in forks:
        fork.kill()
        await assert_whole_again(fork)


def index_files(disk: SimDisk) -> list[Path]:
    return [FOLDER / name for name in disk.list_dir(FOLDER)]


def remove(number: int) -> Callable[[SimDisk], None]:
    return lambda disk: disk.remove_tree(index_files(disk)[number])


def write(number: int, at: int, data: bytes) -> Callable[[SimDisk], None]:
    return lambda disk: disk.open(index_files(disk)[number]).pwrite(data, at)


def cut(number: int, size: int) -> Callable[[SimDisk], None]:
    return lambda disk: disk.open(index_files(disk)[number]).truncate(size)


def rename(disk: SimDisk) -> None:
    last = index_files(disk)[-1]
    disk.replace(last, last.with_name("20991231235959000"))


DAMAGES: dict[str, Callable[[SimDisk], None]] = {
    "the folder is lost": lambda disk: disk.remove_tree(FOLDER),
    "the first file is lost": remove(0),
    "a file in the middle is lost": remove(1),
    "the last file is lost": remove(-1),
    "the first file is empty": cut(0, 0),
    "the last file is empty": cut(-1, 0),
    "the last file is a byte short": cut(-1, SIZE.file_bytes - 1),
    "the last file is too long": cut(-1, SIZE.file_bytes + 1),
    "the last file has another name": rename,
    "a file of the past came back": lambda disk: disk.replace(index_files(disk)[0], FOLDER / "20000101000000000"),
    "the first head is zeros": write(0, 0, bytes(40)),
    "the last head is zeros": write(-1, 0, bytes(40)),
    "the last head counts too few": write(-1, 36, (2).to_bytes(4, "big")),
    "the last head counts too many": write(-1, 36, (24).to_bytes(4, "big")),
    "the first head's times are wrong": write(0, 0, bytes(8) + (1).to_bytes(8, "big")),
    "the last head's times are wrong": write(-1, 0, bytes(8) + (1).to_bytes(8, "big")),
}


@pytest.mark.parametrize("clean", [True, False], ids=["clean stop", "kill"])
@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_index_is_built_anew_or_still_right(damage: str, clean: bool) -> None:
    disk = SimDisk()
    await work(disk, clean=clean)
    assert len(index_files(disk)) >= 3
    DAMAGES[damage](disk)
    await assert_whole_again(disk)


CONTENT_DAMAGES: dict[str, Callable[[SimDisk], None]] = {
    "the first slots are zeros": write(0, SLOTS_AT, bytes(32)),
    "the last slots are zeros": write(-1, SLOTS_AT, bytes(32)),
    "the last slots are too large": write(-1, SLOTS_AT, (1000).to_bytes(4, "big") * 8),
    "the last slots are negative": write(-1, SLOTS_AT, b"\xff" * 32),
    "the first entries are zeros": write(0, ENTRIES_AT, bytes(24 * 20)),
    "the last entries are zeros": write(-1, ENTRIES_AT, bytes(24 * 20)),
    "the last entries are noise": write(-1, ENTRIES_AT + 20, SeededRng(5).randbytes(60)),
}


@pytest.mark.parametrize("damage", CONTENT_DAMAGES)
async def test_damage_inside_an_index_file_is_found_by_dump_log_and_mended_by_removing_the_folder(damage: str) -> None:
    """RocketMQ's layout has no checksums, and a start does not read whole files (docs/guides/guarantees.md)."""
    disk = SimDisk()
    await work(disk, clean=True)
    dump = DumpOptions(options().layout.root, verify=True, index_slots=SIZE.slots)
    assert dump_log(disk, dump, lambda line: None) == 0
    CONTENT_DAMAGES[damage](disk)
    assert dump_log(disk, dump, lambda line: None) == 1
    disk.remove_tree(FOLDER)
    await assert_whole_again(disk)


@pytest.mark.mechanism("S8")
@pytest.mark.parametrize("lost", ["checkpoint", "watermark", "config", "consumequeue", "commitlog-only"])
async def test_index_survives_the_loss_of_everything_around_it(lost: str) -> None:
    disk = SimDisk()
    await work(disk, clean=True)
    root = FOLDER.parent
    for name in disk.list_dir(root) if lost == "commitlog-only" else [lost]:
        if name != "commitlog":
            disk.remove_tree(root / name)
    await assert_whole_again(disk)
