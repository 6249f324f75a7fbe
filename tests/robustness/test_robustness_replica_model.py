"""What the model of replicas asks of a master that has answered the end of a transaction, or that starts again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from histories import end_all
from replica_histories import small_numbers
from replica_model import EVIDENCE_BYTES, InvariantError
from replica_node import LAYOUT, Node, Settings
from replica_world import ReplicaWorld
from simulation import run_simulation

from mq_broker.core.replica_state import BrokerRole, InSyncSet
from mq_broker.processor.broker import Broker
from mq_broker.replication.in_sync import InSyncLedger
from mq_broker.store.message_store import FlushDiskType, MessageStore
from osenv import SeededRng

DISK_S = 0.05  # before and after each call
STEP_S, STEPS_MAX = 0.001, 2_000


class Smallest(SeededRng):
    """With it nothing survives a power cut that was not synced."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start


@asynccontextmanager
async def _opened(flush: FlushDiskType, nodes: int) -> AsyncIterator[ReplicaWorld]:
    """Brokers of which all have to be in sync."""
    world = ReplicaWorld(SeededRng(1), Settings(flush, BrokerRole.SYNC_MASTER, nodes, has_index=False), nodes)
    with small_numbers():
        try:
            await world.open()
            yield world
        finally:
            await world.close()
            await end_all()


@asynccontextmanager
async def _prepared(nodes: int) -> AsyncIterator[ReplicaWorld]:
    """The same under SYNC_FLUSH, and an open transaction."""
    async with _opened(FlushDiskType.SYNC_FLUSH, nodes) as world:
        messages = world.model.messages
        await _until(world, lambda: any(one.transaction and one.promise for one in messages), world.producers.send)
        yield world


async def _until(world: ReplicaWorld, is_so: Callable[[], bool], step: Callable[[], Awaitable[object]]) -> None:
    for _ in range(STEPS_MAX):
        if is_so():
            return
        await step()
        await world.advance(STEP_S)
    raise AssertionError(f"not so after {STEPS_MAX} steps")


def _is_told(world: ReplicaWorld) -> bool:
    return any(one.told is not None for one in world.model.transactions.values())


async def _start(world: ReplicaWorld, node: Node) -> None:
    opened = world.counts["brokers opened"]
    node.start()
    await _until(world, lambda: world.counts["brokers opened"] > opened, _nothing)


def _cut_off_the_replica(world: ReplicaWorld) -> None:
    world.network.cut(("a", "b"))
    world.network.cut(("b", "a"))


async def _nothing() -> None:
    """Only time passes."""


def _at_work(node: Node) -> Broker:
    assert node.broker is not None
    return node.broker


async def _end_and_lose_power(*, is_followed: bool) -> None:
    """The power goes when the answer has come; `is_followed` by a batch that waits for the disk still."""
    async with _prepared(1) as world:
        (master,) = world.nodes
        store = _at_work(master).store
        assert master.process is not None
        master.process.disk_s = DISK_S
        begin = store.log_end
        await _until(world, lambda: store.log_end > begin, world.producers.end_transaction)
        if is_followed:
            await world.advance(DISK_S * 1.5)  # the file is synced: what stands in it by then is on disk
            end = store.log_end
            await _until(world, lambda: store.log_end > end, world.producers.send)
        await _until(world, lambda: _is_told(world), _nothing)
        master.rng = Smallest(0)
        await master.lose_power()
        await _start(world, master)
        assert not is_followed or _at_work(master).store.log_end == end


async def _end_without_the_replica() -> None:
    async with _prepared(2) as world:
        _cut_off_the_replica(world)
        await _until(world, lambda: _is_told(world), world.producers.end_transaction)


async def _restart_the_master_while_the_replica_is_away(*, has_lost: bool) -> None:
    """The replica has or `has_lost` what was confirmed; what it has not got yet is in the master's log."""
    async with _opened(FlushDiskType.ASYNC_FLUSH, 2) as world:
        master, replica = world.nodes
        store = _at_work(master).store
        await _until(world, lambda: store.readable_end > 0, world.producers.send)
        _cut_off_the_replica(world)
        confirmed = store.readable_end
        if has_lost:
            replica.rng = Smallest(0)
            await replica.lose_power()
            await _start(world, replica)
            assert _at_work(replica).store.log_end < confirmed
        await _until(world, lambda: store.log_end > confirmed, world.producers.send)
        assert master.process is not None
        await world.answer(master.process, _at_work(master).replication.note_confirmed())
        await master.kill()
        await _start(world, master)
        assert _at_work(master).store.readable_end == confirmed


async def _delete_files_of_the_master() -> None:
    size = LAYOUT.commit_log_file_bytes
    async with _opened(FlushDiskType.SYNC_FLUSH, 2) as world:
        disk = world.nodes[0].disk
        await _until(world, lambda: len(disk.list_dir(LAYOUT.commit_log)) > 3, world.producers.send)
        disk.unlink(LAYOUT.commit_log / f"{0:020d}")
        assert world.evidence(world.nodes[0], size - 1) == b""
        assert len(world.evidence(world.nodes[0], 2 * size)) == EVIDENCE_BYTES
        disk.unlink(LAYOUT.commit_log / f"{2 * size:020d}")
        with pytest.raises(FileNotFoundError):
            world.evidence(world.nodes[0], 3 * size)


def test_a_message_may_be_read_while_retention_deletes_its_file() -> None:
    run_simulation(_delete_files_of_the_master())


def test_an_answered_end_promises_nothing_that_others_have_written_behind_it() -> None:
    run_simulation(_end_and_lose_power(is_followed=True))


def test_an_answered_end_that_is_not_on_disk_is_found_after_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered_at_once(_store: MessageStore) -> None:
        return

    monkeypatch.setattr(MessageStore, "wait_acknowledged", answered_at_once)
    with pytest.raises(InvariantError, match=r"has lost what a had promised .*: (commits|roll-backs)"):
        run_simulation(_end_and_lose_power(is_followed=False))


def test_an_answered_end_that_an_in_sync_replica_does_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered_in_any_case(store: MessageStore) -> None:
        await store.wait_stored(store.log_end)

    monkeypatch.setattr(MessageStore, "wait_acknowledged", answered_in_any_case)
    with pytest.raises(InvariantError, match=r"its durable in-sync set .* names b, which had"):
        run_simulation(_end_without_the_replica())


def test_a_restarted_master_shows_what_it_had_confirmed_though_the_replica_has_lost_it_since() -> None:
    run_simulation(_restart_the_master_while_the_replica_is_away(has_lost=True))


def test_a_restarted_master_that_confirms_more_than_it_had_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = InSyncLedger.begin

    def begin_with_more(ledger: InSyncLedger, in_sync: InSyncSet, confirmed: int, now: float) -> None:
        begin(ledger, in_sync, confirmed + 1_000 if confirmed else 0, now)

    monkeypatch.setattr(InSyncLedger, "begin", begin_with_more)
    with pytest.raises(InvariantError, match=r"its durable in-sync set .* names b, which had"):
        run_simulation(_restart_the_master_while_the_replica_is_away(has_lost=False))
