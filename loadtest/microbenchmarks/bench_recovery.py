"""Starting again: with an unflushed tail to be read, and after a clean stop with a long log."""

# ruff: noqa: S101 - a measurement of something else than it says is worse than none

from __future__ import annotations

import asyncio
from typing import Any

from micro_setup import (
    BATCH_MESSAGES,
    BODY_BYTES,
    MIB,
    LiveStore,
    describe,
    measure,
    rounds,
    scaled,
    store_options,
    temporary_root,
    wire_batch,
)
from pytest_benchmark.fixture import BenchmarkFixture

from mq_broker.core.delays import DEFAULT_DELAY_LEVELS, DelayLevels
from mq_broker.core.replica_state import BrokerIdentity
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.store.message_store import MessageStore
from osenv import RealClock, RealDisk

TAIL_BYTES = 64 * MIB
LOG_BYTES = 1024 * MIB
RECORD_BYTES = len(wire_batch()) // BATCH_MESSAGES
ROUNDS = 9
OPTIONS = BrokerOptions(
    BrokerIdentity("DefaultCluster", "broker-a", 0, "127.0.0.1:10911"), DelayLevels.parse(DEFAULT_DELAY_LEVELS)
)


def bench_scan_of_an_unflushed_tail(benchmark: BenchmarkFixture) -> None:
    """Everything above the checkpoint is read, checked, and told to the consume queues again."""
    with temporary_root() as root:
        live = LiveStore(root)
        live.flush()
        live.put_many(scaled(TAIL_BYTES) // RECORD_BYTES, body_bytes=BODY_BYTES)
        end = live.store.log_end
        live.close(clean=False)
        disk = RealDisk()
        opened: list[MessageStore] = []

        def make() -> tuple[tuple[MessageStore], dict[str, Any]]:
            _release(opened)
            opened.append(MessageStore(disk, RealClock(), store_options(root), {}))
            return (opened[0],), {}

        def open_(store: MessageStore) -> None:
            store.open(lambda record: None)

        describe(benchmark, "recovery: read the unflushed tail", unit="MiB", count=end / MIB)
        measure(benchmark, open_, setup=make, rounds=rounds(ROUNDS))
        assert opened[0].log_end == end
        _release(opened)
        disk.close()


def bench_start_after_a_clean_stop(benchmark: BenchmarkFixture) -> None:
    """A broker with everything around its store, from nothing to ready for requests."""
    with temporary_root() as root:
        live = LiveStore(root)
        live.put_many(scaled(LOG_BYTES) // RECORD_BYTES, body_bytes=BODY_BYTES)
        live.index_all()
        end = live.store.log_end
        live.close()
        disk, loop = RealDisk(), asyncio.new_event_loop()
        opened: list[Broker] = []

        def make() -> tuple[tuple[Broker], dict[str, Any]]:
            _close(opened, loop)
            opened.append(Broker(disk, RealClock(), OPTIONS, store_options(root)))
            return (opened[0],), {}

        def open_(broker: Broker) -> None:
            loop.run_until_complete(broker.open())

        work = f"start after a clean stop, with {end / MIB:,.0f} MiB of log"
        describe(benchmark, work, unit="start", count=1, goal="under 2 s with 1 GiB")
        open_(make()[0][0])  # the first one finds no states, and reads the whole log for them
        measure(benchmark, open_, setup=make, rounds=rounds(ROUNDS))
        assert opened[0].store.log_end == end
        _close(opened, loop)
        loop.close()
        disk.close()


def _release(opened: list[MessageStore]) -> None:
    while opened:
        opened.pop().release()


def _close(opened: list[Broker], loop: asyncio.AbstractEventLoop) -> None:
    while opened:
        loop.run_until_complete(opened.pop().close())
