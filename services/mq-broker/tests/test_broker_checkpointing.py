"""Checkpoints, flushes and state writes: whole or not at all, whichever task is cancelled and whatever the disk
rejects."""

from __future__ import annotations

import asyncio
import errno
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import CHECKPOINT_INTERVAL_S, Broker
from mq_broker.store import durability
from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.durability import finish_despite_cancellation
from mq_broker.store.errors import StoreFencedError
from mq_broker.store.layout import StoreLayout, read_checkpoint
from mq_broker.testing import (
    STORE_ROOT,
    broker_options,
    flush_and_index,
    half,
    incoming,
    produce,
    read_all,
    running_broker,
    store_options,
)
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_clock import settle

FILE_BYTES = 4_096
LAYOUT = StoreLayout(STORE_ROOT)
OFFSETS = "consumerOffset.json"

P = ParamSpec("P")
T = TypeVar("T")


class GatedDisk(SimDisk):
    """Blocking calls run one after the other, as threads do: each waits for the gate, and no cancelling stops it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.overlaps = 0
        self.pass_first = 0  # calls that go through although the gate is closed

    async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.shield(asyncio.ensure_future(self._in_thread(lambda: call(*args, **kwargs))))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        self.overlaps += self.waiting > 0
        if self.pass_first:
            self.pass_first -= 1
        else:
            self.waiting += 1
            await self.gate.wait()
            self.waiting -= 1
        return call()

    def close_gate(self, *, after: int = 0) -> None:
        self.gate.clear()
        self.pass_first = after


class Nothing(SeededRng):
    """Of what was not synced nothing survives a power cut."""

    def randrange(self, start: int, stop: int) -> int:  # type: ignore[override]
        return start


def flushing_broker(disk: SimDisk, clock: SimClock | None = None) -> AbstractAsyncContextManager[Broker]:
    """A broker that flushes and does nothing else by itself; it is dropped in the end as it is."""
    store = store_options(log_file_bytes=FILE_BYTES)
    return running_broker(disk, clock or SimClock(), store=store, clean_stop=False, work=flush_and_index)


async def fill(broker: Broker, count: int = 10, first: int = 0) -> None:
    """Something for every part of a checkpoint."""
    for number in range(first, first + count):
        outcomes = await produce(broker, incoming("t", [b"%d" % number + bytes(300)], queue_id=number % 2))
        assert outcomes[0].code is ResponseCode.SUCCESS
    broker.offsets.commit("g", [("t", 0, Progress((first + count) // 2))])
    await produce(broker, half("t", b"order", f"tx-{first}"))
    await broker.transactions.end("shop", f"tx-{first}", TransactionState.ROLLBACK_MESSAGE, from_check=False)
    await settle()


async def numbers(broker: Broker) -> list[int]:
    records = [record for queue_id in (0, 1) for record in await read_all(broker, "t", queue_id)]
    return sorted(int(record.body.rstrip(b"\0")) for record in records)


async def assert_true(disk: SimDisk, count: int, *, offset: int | None = None) -> None:
    """After a power cut that takes all that was not synced, what the checkpoint says is there, and so is everything."""
    disk.before = disk.after = lambda call, path: None
    if isinstance(disk, GatedDisk):
        disk.gate.set()
    disk.crash(Nothing(0))
    claimed = read_checkpoint(disk, LAYOUT)
    if claimed is not None:
        broker = Broker(disk.fork(), SimClock(), broker_options(), store_options(log_file_bytes=FILE_BYTES))
        report = broker.store.open(lambda record: None)
        assert not report.rebuilt  # the queues were what it says
        assert report.scanned_from == claimed.log_offset
        assert broker.store.index.indexed_end == claimed.index.log_offset
    broker = Broker(disk, SimClock(), broker_options(), store_options(log_file_bytes=FILE_BYTES))
    await broker.open()
    assert await numbers(broker) == list(range(count))
    if offset is not None:
        assert broker.consumer_offsets.query("g", "t", 0) == offset
    await broker.close()


async def reached(disk: GatedDisk) -> None:
    await settle()
    assert disk.waiting == 1


async def test_uninterrupted_work_ends_before_its_caller_hears_that_it_was_cancelled() -> None:
    gate, done = asyncio.Event(), list[str]()

    async def work() -> int:
        await gate.wait()
        done.append("work")
        return 7

    async def caller() -> None:
        try:
            await finish_despite_cancellation(work())
        finally:
            done.append("caller")

    task = asyncio.create_task(caller())
    for _ in range(3):
        await settle()
        task.cancel()
    await settle()
    assert not task.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == ["work", "caller"]
    assert await finish_despite_cancellation(work()) == 7


async def test_uninterrupted_work_that_fails_tells_its_error_also_to_a_cancelled_caller() -> None:
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()
        raise OSError(errno.EIO, "the platter is scratched")

    task = asyncio.create_task(finish_despite_cancellation(work()))
    await settle()
    task.cancel()
    await settle()
    gate.set()
    with pytest.raises(OSError, match="scratched"):
        await task


Work = Callable[[Broker], Coroutine[Any, Any, None]]
WORK: dict[str, tuple[Work, int]] = {  # and how many blocking calls it makes when there is something of everything
    "checkpoint": (lambda broker: broker.store.checkpoint(), 10),
    "flush": (lambda broker: broker.store.flusher.flush(), 1),
    "state write": (lambda broker: broker.store.persist(OFFSETS), 1),
}


class TestCancelling:
    @pytest.mark.parametrize(("what", "call"), [(what, n) for what, (_, calls) in WORK.items() for n in range(calls)])
    async def test_cancelled_work_is_finished_first_and_claims_only_what_is_durable(self, what: str, call: int) -> None:
        disk = GatedDisk()
        async with flushing_broker(disk) as broker:
            await fill(broker)
            if what == "flush":  # the flusher has nothing left to do: give it something
                broker.producing.put([incoming("t", [b"10"])])
            disk.close_gate(after=call)
            work = asyncio.create_task(WORK[what][0](broker))
            await reached(disk)
            work.cancel()
            await settle()
            assert not work.done()
            again = asyncio.create_task(WORK[what][0](broker))
            await settle()
            assert disk.waiting == 1  # the next one waits until this one has ended
            disk.gate.set()
            with pytest.raises(asyncio.CancelledError):
                await work
            await again
            assert disk.overlaps == 0
            assert broker.store.failure is None
        await assert_true(disk, 11 if what == "flush" else 10, offset=5 if what != "flush" else None)

    @pytest.mark.parametrize("call", range(10))
    async def test_power_cut_in_the_middle_of_a_cancelled_checkpoint_leaves_the_old_one_or_the_new(
        self, call: int
    ) -> None:
        disk = GatedDisk()
        async with flushing_broker(disk) as broker:
            await fill(broker)
            await broker.store.checkpoint()
            await fill(broker, first=10)
            disk.close_gate(after=call)
            work = asyncio.create_task(broker.store.checkpoint())
            await settle()
            work.cancel()
            await settle()
            fork = disk.fork()
            disk.gate.set()
            await asyncio.gather(work, return_exceptions=True)
        await assert_true(fork, 20)

    async def test_a_sync_that_fails_after_its_checkpoint_was_cancelled_fences_all_the_same(self) -> None:
        disk = GatedDisk()
        async with flushing_broker(disk) as broker:
            await fill(broker)
            disk.close_gate()
            work = asyncio.create_task(broker.store.checkpoint())
            await reached(disk)
            work.cancel()
            disk.before = fail_on({"sync_data"}, errno.EIO)
            disk.gate.set()
            await asyncio.gather(work, return_exceptions=True)
            assert broker.store.failure is not None
            (outcome,) = await produce(broker, incoming("t", [b"x"]))
            assert outcome.code is ResponseCode.SERVICE_NOT_AVAILABLE

    async def test_a_message_is_acknowledged_although_who_flushed_it_was_cancelled(self) -> None:
        disk = GatedDisk()
        async with flushing_broker(disk) as broker:
            await fill(broker)
            disk.close_gate()
            waiting = asyncio.create_task(produce(broker, incoming("t", [b"10"])))
            await reached(disk)
            end = broker.store.log_end
            assert broker.store.flusher.durable_end < end
            flushing = asyncio.create_task(broker.store.flusher.flush())
            await settle()
            flushing.cancel()
            await settle()
            assert not waiting.done()
            assert broker.store.flusher.durable_end < end  # nothing is claimed before it is so
            disk.gate.set()
            assert (await waiting)[0].code is ResponseCode.SUCCESS
            assert broker.store.flusher.durable_end == end
        await assert_true(disk, 11)


def fail_on(calls: set[str], number: int, wanted: Callable[[Path], bool] = lambda path: True) -> Any:
    def fail(call: str, path: Path) -> None:
        if call in calls and wanted(path):
            raise OSError(number, "simulated")

    return fail


class TestSyncErrors:
    @pytest.mark.parametrize("failing", range(0, 26, 2))
    async def test_the_first_sync_that_fails_is_the_last(self, failing: int) -> None:
        disk, syncs = SimDisk(), list[Path]()

        def fail(call: str, path: Path) -> None:
            if call in {"sync_data", "sync_dir"}:
                syncs.append(path)
                if len(syncs) > failing:
                    raise OSError(errno.EIO, "the platter is scratched")

        broker = Broker(disk, SimClock(), broker_options(), store_options(log_file_bytes=FILE_BYTES))
        await broker.open()
        running = asyncio.create_task(broker.run())
        await fill(broker)
        broker.offsets.commit("g", [("t", 0, Progress(1))])
        disk.before = fail
        await broker.store.checkpoint()
        disk.before = lambda call, path: syncs.append(path) if call.startswith("sync") else None
        if len(syncs) <= failing:
            running.cancel()
            pytest.fail(f"a checkpoint makes {len(syncs)} syncs only")
        assert len(syncs) == failing + 1
        async with asyncio.timeout(5):
            await running  # the broker ends by itself
        (outcome,) = await produce(broker, incoming("t", [b"x"]))
        assert outcome.code is ResponseCode.SERVICE_NOT_AVAILABLE
        with pytest.raises(StoreFencedError):
            await broker.store.wait_stored(broker.store.log_end)
        await broker.store.checkpoint()
        await broker.close()
        assert len(syncs) == failing + 1
        assert disk.exists(LAYOUT.abort)
        await assert_true(disk, 10)


STATES = ["topics.json", "subscriptionGroup.json", OFFSETS, "delayOffset.json", "transactionOffset.json"]
REJECTED: dict[str, Callable[[Path], bool]] = {
    **{name: lambda path, name=name: path.name.startswith(name) for name in STATES},  # type: ignore[misc]
    "checkpoint": lambda path: path.name.startswith("checkpoint"),
    "index": lambda path: path.parent == LAYOUT.index,
    "watermark": lambda path: path == LAYOUT.watermark,
    "the next log file": lambda path: path.parent == LAYOUT.commit_log and path.name != "0" * 20,
}


class TestRejections:
    @pytest.mark.parametrize("call", ["open", "pwrite", "truncate", "replace", "allocate"])
    @pytest.mark.parametrize("what", REJECTED)
    async def test_a_full_disk_delays_a_checkpoint_and_fences_nothing(self, what: str, call: str) -> None:
        disk, clock = SimDisk(), SimClock()
        broker = Broker(disk, clock, broker_options(), store_options(log_file_bytes=FILE_BYTES))
        await broker.open()
        running = asyncio.create_task(broker.run())
        await fill(broker, 5)
        disk.before = fail_on({call}, errno.ENOSPC, REJECTED[what])
        await clock.advance(31)  # three checkpoints, six times the offsets
        assert not running.done()
        assert broker.store.failure is None
        assert await numbers(broker) == [0, 1, 2, 3, 4]
        disk.before = lambda call, path: None
        await fill(broker, 5, first=5)
        await clock.advance(21)
        assert broker.store.checkpointed_end == broker.store.log_end
        assert broker.store.index.indexed_end == broker.store.log_end
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await assert_true(disk, 10, offset=5)

    async def test_a_folder_that_cannot_be_opened_for_its_sync_is_synced_next_time(self) -> None:
        """Too many open files: the folder was not synced, and nothing is in doubt. Only the claim has to wait."""
        disk = NoDescriptors()
        async with flushing_broker(disk) as broker:
            await fill(broker)
            disk.rejecting = True
            await broker.store.checkpoint()
            disk.rejecting = False
            assert broker.store.failure is None
            await broker.offsets.set("g", [("t", 0, 4)])
            await broker.store.checkpoint()
            assert broker.store.checkpointed_end == broker.store.log_end
        await assert_true(disk, 10, offset=4)


class NoDescriptors(SimDisk):
    rejecting = False

    def sync_dir(self, path: Path) -> None:
        if self.rejecting:
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        super().sync_dir(path)


async def test_a_checkpoint_with_nothing_new_writes_nothing() -> None:
    disk, calls = SimDisk(), list[str]()
    async with flushing_broker(disk) as broker:
        await fill(broker)
        await broker.store.checkpoint()
        disk.before = lambda call, path: calls.append(f"{call} {path}")
        for _ in range(3):
            await broker.store.checkpoint()
        assert calls == []
        broker.offsets.commit("g", [("t", 1, Progress(1))])
        await broker.store.checkpoint()
        assert any(OFFSETS in call for call in calls)
        calls.clear()
        await broker.store.checkpoint()
        assert calls == []


async def test_a_checkpoint_of_new_queues_syncs_the_folders_above_them_once_a_step() -> None:
    disk, synced = SimDisk(), Counter[Path]()
    async with flushing_broker(disk) as broker:
        for number in range(64):
            broker.producing.put([incoming(f"t{number // 4}", [b"x"], queue_id=number % 4)])
        disk.before = lambda call, path: synced.update([path] if call == "sync_dir" else [])
        await broker.store.checkpoint()
    assert synced[LAYOUT.consume_queues] == 1
    assert {synced[LAYOUT.consume_queues / f"t{number}"] for number in range(16)} == {1}
    assert {synced[LAYOUT.consume_queue(f"t{number // 4}", number % 4)] for number in range(64)} == {1}


async def test_a_checkpoint_of_many_queues_syncs_them_in_small_steps_some_of_them_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken, in_a_step, at_once = 0, list[int](), list[int]()

    class SteppingDisk(SimDisk):
        running = 0

        async def offload(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
            nonlocal taken
            in_a_step.append(taken)
            taken = 0
            self.running += 1
            at_once.append(self.running)
            await asyncio.sleep(0)
            self.running -= 1
            return call(*args, **kwargs)

    def take_sync(queue: ConsumeQueue) -> Callable[[], None]:
        nonlocal taken
        taken += 1
        return take(queue)

    take = ConsumeQueue.take_sync
    monkeypatch.setattr(ConsumeQueue, "take_sync", take_sync)
    disk = SteppingDisk()
    async with flushing_broker(disk) as broker:
        for number in range(500):
            broker.producing.put([incoming(f"t{number // 4}", [b"x"], queue_id=number % 4)])
        await broker.store.checkpoint()
        assert sum(in_a_step) >= 500
        assert max(in_a_step) <= 64
        assert max(at_once) == 3
    left = next(disk.lost_states(SeededRng(1), exhaustive_units_max=0))
    broker = Broker(left, SimClock(), broker_options(), store_options(log_file_bytes=FILE_BYTES))
    assert not broker.store.open(lambda record: None).rebuilt
    assert {broker.store.queue_end(f"t{number // 4}", number % 4) for number in range(500)} == {1}


async def test_many_records_are_checkpointed_before_the_interval_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durability, "RECORDS_BETWEEN_MAX", 10)
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, clean_stop=False) as broker:
        for _ in range(2):
            await produce(broker, incoming("t", [b"x"] * 9))
            await settle()
        checkpoint = read_checkpoint(disk, LAYOUT)
        assert checkpoint is not None
        assert checkpoint.entry_count == 18
        await produce(broker, incoming("t", [b"x"] * 9))
        await settle()
        assert read_checkpoint(disk, LAYOUT) == checkpoint
        await clock.advance(CHECKPOINT_INTERVAL_S)
        assert broker.store.checkpointed_end == broker.store.log_end
