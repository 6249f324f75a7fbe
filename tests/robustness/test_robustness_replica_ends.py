"""What the histories of replicas ask of a master that has answered the end of a transaction: all of it, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from histories import end_all
from replica_histories import small_numbers
from replica_model import InvariantError
from replica_node import Node, Settings
from replica_world import ReplicaWorld
from simulation import run_simulation

from mq_broker.core.replication.roles import BrokerRole
from mq_broker.processor.broker import Broker
from mq_broker.store.message_store import FlushDiskType, MessageStore
from osenv import SeededRng

DISK_S = 0.05  # before and after each call
STEP_S, STEPS_MAX = 0.001, 2_000


class Smallest(SeededRng):
    """With it nothing survives a power cut that was not synced."""

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return start


@asynccontextmanager
async def _prepared(nodes: int) -> AsyncIterator[ReplicaWorld]:
    """Brokers of which all have to be in sync, under SYNC_FLUSH, and an open transaction."""
    settings = Settings(FlushDiskType.SYNC_FLUSH, BrokerRole.SYNC_MASTER, nodes, has_index=False)
    world = ReplicaWorld(SeededRng(1), settings, nodes)
    with small_numbers():
        try:
            await world.open()
            messages = world.model.messages
            await _until(world, lambda: any(one.transaction and one.promise for one in messages), world.producers.send)
            yield world
        finally:
            await world.close()
            await end_all()


async def _until(world: ReplicaWorld, is_so: Callable[[], bool], step: Callable[[], Awaitable[object]]) -> None:
    for _ in range(STEPS_MAX):
        if is_so():
            return
        await step()
        await world.advance(STEP_S)
    raise AssertionError(f"not so after {STEPS_MAX} steps")


def _is_told(world: ReplicaWorld) -> bool:
    return any(one.told is not None for one in world.model.transactions.values())


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
        opened = world.counts["brokers opened"]
        master.rng = Smallest(0)
        await master.lose_power()
        master.start()
        await _until(world, lambda: world.counts["brokers opened"] > opened, _nothing)
        assert not is_followed or _at_work(master).store.log_end == end


async def _end_without_the_slave() -> None:
    async with _prepared(2) as world:
        world.network.cut(("a", "b"))
        world.network.cut(("b", "a"))
        await _until(world, lambda: _is_told(world), world.producers.end_transaction)


def test_an_answered_end_promises_nothing_that_others_have_written_behind_it() -> None:
    run_simulation(_end_and_lose_power(is_followed=True))


def test_an_answered_end_that_is_not_on_disk_is_found_after_a_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered_at_once(_store: MessageStore) -> None:
        return

    monkeypatch.setattr(MessageStore, "wait_acknowledged", answered_at_once)
    with pytest.raises(InvariantError, match=r"has lost what a had promised .*: (commits|roll-backs)"):
        run_simulation(_end_and_lose_power(is_followed=False))


def test_an_answered_end_that_an_in_sync_slave_does_not_have_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered_in_any_case(store: MessageStore) -> None:
        await store.wait_stored(store.log_end)

    monkeypatch.setattr(MessageStore, "wait_acknowledged", answered_in_any_case)
    with pytest.raises(InvariantError, match=r"its durable in-sync set .* names b, which had"):
        run_simulation(_end_without_the_slave())
