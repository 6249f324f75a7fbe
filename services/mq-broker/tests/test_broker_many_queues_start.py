"""A start does little for each queue, and changes nothing of what is in order, however many queues there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.processor.broker import Broker
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import (
    QUEUE_FILE_ENTRIES,
    STORE_ROOT,
    broker_options,
    incoming,
    produce,
    read_all,
    running_broker,
    store_options,
)
from osenv import SeededRng, SimClock, SimDisk
from osenv.disk import read_file

CHANGES = {"pwrite", "truncate", "allocate", "sync_data", "unlink", "sync_dir"}
QUEUES = STORE_ROOT / "consumequeue"
ENDS = StoreLayout(STORE_ROOT).config / "queueEnds.json"
TOPICS, QUEUE_COUNT = 5, 4


async def test_a_start_after_a_clean_stop_changes_and_syncs_no_queue() -> None:
    disk, changed = SimDisk(), list[Path]()
    async with running_broker(disk, SimClock()) as broker:
        for queue_id in range(4):
            await produce(broker, incoming("t", [b"a", b"b"], queue_id=queue_id))

    def note(call: str, path: Path) -> None:
        if call in CHANGES and QUEUES in path.parents:
            changed.append(path)

    disk.before = note
    broker = Broker(disk, SimClock(), broker_options(), store_options())
    await broker.open()
    assert changed == []
    await produce_and_read(broker)
    await broker.close()
    disk.before = lambda call, path: None
    disk.crash(SeededRng(1))
    async with running_broker(disk, SimClock()) as broker:
        assert [record.body for record in await read_all(broker, "t", 3)] == [b"a", b"b", b"c"]


async def produce_and_read(broker: Broker) -> None:
    broker.producing.put([incoming("t", [b"c"], queue_id=3)])
    assert broker.store.queue_end("t", 3) == 3


async def put_into_all(broker: Broker, body: bytes = b"a") -> None:
    for number in range(TOPICS):
        for queue_id in range(QUEUE_COUNT):
            await produce(broker, incoming(f"t{number}", [body, body], queue_id=queue_id))


async def store_of_queues(*, stopped: bool = True) -> SimDisk:
    """Two messages in each of 20 queues; the broker was stopped, or killed after a checkpoint."""
    disk = SimDisk()
    async with running_broker(disk, SimClock(), clean_stop=stopped) as broker:
        await put_into_all(broker)
        await broker.store.checkpoint()
    if not stopped:
        disk.kill()
    return disk


async def calls_of_a_start(disk: SimDisk) -> list[tuple[str, Path]]:
    """The calls for the folder of consume queues, or below it, in their order. The broker is dropped as it is."""
    calls = list[tuple[str, Path]]()

    def note(call: str, path: Path) -> None:
        if path == QUEUES or QUEUES in path.parents:
            calls.append((call, path))

    disk.before = note
    await Broker(disk, SimClock(), broker_options(), store_options()).open()
    disk.before = lambda call, path: None
    disk.kill()
    return calls


async def bodies(broker: Broker) -> set[tuple[bytes, ...]]:
    """What each of the queues holds; equal ones once."""
    queues = [(f"t{number}", queue_id) for number in range(TOPICS) for queue_id in range(QUEUE_COUNT)]
    return {tuple([record.body for record in await read_all(broker, *queue)]) for queue in queues}


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_start_opens_and_reads_each_queue_once_and_lists_no_folder_of_one(stopped: bool) -> None:
    disk = await store_of_queues(stopped=stopped)
    calls = Counter(call for call, _ in await calls_of_a_start(disk))
    assert calls == {"list_dir": 1 + TOPICS, "open": TOPICS * QUEUE_COUNT, "pread": TOPICS * QUEUE_COUNT}
    async with running_broker(disk, SimClock()) as broker:
        assert await bodies(broker) == {(b"a", b"a")}


async def test_after_a_kill_only_the_queues_that_took_something_since_the_checkpoint_are_recovered() -> None:
    disk = await store_of_queues()
    async with running_broker(disk, SimClock(), clean_stop=False) as broker:
        await produce(broker, incoming("t2", [b"b"], queue_id=1), incoming("new", [b"b"], queue_id=0))
    disk.kill()
    calls = await calls_of_a_start(disk)
    changed = {path.parent for call, path in calls if call in CHANGES and path.name.isdigit() and len(path.name) == 20}
    assert changed == {QUEUES / "t2" / "1", QUEUES / "new" / "0"}
    async with running_broker(disk, SimClock()) as broker:
        assert [record.body for record in await read_all(broker, "t2", 1)] == [b"a", b"a", b"b"]
        assert [record.body for record in await read_all(broker, "new")] == [b"b"]
        assert broker.store.messages_stored == 2 * TOPICS * QUEUE_COUNT + 2


async def test_after_a_power_cut_each_queue_is_looked_at() -> None:
    disk = await store_of_queues(stopped=False)
    disk.crash(SeededRng(1))
    calls = Counter(call for call, _ in await calls_of_a_start(disk))
    assert calls["list_dir"] == 1 + TOPICS + TOPICS * QUEUE_COUNT
    async with running_broker(disk, SimClock()) as broker:
        assert await bodies(broker) == {(b"a", b"a")}


def damage(disk: SimDisk) -> None:
    disk.open(ENDS).pwrite(b"9", 30)


def lose(disk: SimDisk) -> None:
    disk.unlink(ENDS)


@pytest.mark.parametrize("spoil", [damage, lose])
async def test_a_start_does_without_the_noted_ends(spoil: Callable[[SimDisk], None]) -> None:
    disk = await store_of_queues()
    spoil(disk)
    async with running_broker(disk, SimClock()) as broker:
        assert await bodies(broker) == {(b"a", b"a")}


async def test_ends_that_were_noted_with_another_checkpoint_do_not_count() -> None:
    disk = await store_of_queues()
    older = read_file(disk, ENDS)
    async with running_broker(disk, SimClock()) as broker:
        await put_into_all(broker, b"b")
    file = disk.open(ENDS)
    file.truncate(0)
    file.pwrite(older, 0)
    async with running_broker(disk, SimClock()) as broker:
        assert await bodies(broker) == {(b"a", b"a", b"b", b"b")}


def cut_short(disk: SimDisk, path: Path) -> None:
    disk.open(path).truncate(20)


def remove(disk: SimDisk, path: Path) -> None:
    disk.unlink(path)


@pytest.mark.parametrize("harm", [cut_short, remove])
async def test_a_queue_whose_file_does_not_agree_with_its_noted_end_is_told_by_the_log(
    harm: Callable[[SimDisk, Path], None],
) -> None:
    disk = await store_of_queues()
    harm(disk, QUEUES / "t3" / "2" / f"{0:020d}")
    async with running_broker(disk, SimClock()) as broker:
        assert await bodies(broker) == {(b"a", b"a")}


async def test_a_message_behind_a_noted_end_has_the_rest_of_its_queue_examined() -> None:
    """After a power cut that took `abort` too, a start takes the stop for one in order, until the log shows more."""
    disk = SimDisk()
    folder, next_file = QUEUES / "t" / "0", f"{QUEUE_FILE_ENTRIES * CQ_ENTRY.size:020d}"
    async with running_broker(disk, SimClock(), clean_stop=False) as broker:
        await produce(broker, incoming("t", [b"a"] * (QUEUE_FILE_ENTRIES - 2)))
        await broker.store.checkpoint()
        await produce(broker, incoming("t", [b"b"] * 3))
    disk.kill()
    assert next_file in disk.list_dir(folder)
    disk.open(folder / ("0" * 20)).pwrite(bytes(2 * CQ_ENTRY.size), (QUEUE_FILE_ENTRIES - 2) * CQ_ENTRY.size)
    log_file = disk.open(StoreLayout(STORE_ROOT).commit_log / ("0" * 20))
    log_file.pwrite(bytes(64), broker.store.log_end - 64)  # the last of the three is torn
    disk.unlink(StoreLayout(STORE_ROOT).abort)
    async with running_broker(disk, SimClock()) as broker:
        assert [record.body for record in await read_all(broker, "t")] == [b"a"] * (QUEUE_FILE_ENTRIES - 2) + [b"b"] * 2
        assert next_file not in disk.list_dir(folder)
        await produce(broker, incoming("t", [b"c"]))
        assert (await read_all(broker, "t"))[-1].body == b"c"
