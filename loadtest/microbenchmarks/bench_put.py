"""From a checked batch to the log, the consume queue and the index: the whole and its parts, without the flush."""

# ruff: noqa: S101 - a measurement of something else than it says is worse than none

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from micro_setup import (
    BATCH_MESSAGES,
    STORE_MS,
    TOPIC,
    checked_batch,
    describe,
    fresh,
    live_store,
    measure,
    rounds,
    wire_batch,
)
from pytest_benchmark.fixture import BenchmarkFixture

from mq_broker.core.batches import CQ_ENTRY, index_keys, patch_batch

ROUNDS = 1_500
WARM_UP = 20
Setup = Callable[[], tuple[tuple[Any, ...], dict[str, Any]]]
GOAL = "at most 3 us a message"


def bench_put_and_index(benchmark: BenchmarkFixture) -> None:
    """What a message costs in all: its place, log, consume queue, and its key in the index a moment later."""
    batch = checked_batch(wire_batch())
    describe(benchmark, "put a batch of 1 KiB bodies, and index it", unit="message", count=BATCH_MESSAGES)
    with live_store() as live:

        def put_and_index(copy: Any) -> None:
            live.store.put([copy], STORE_MS)
            live.index_all()

        _measure(benchmark, put_and_index, lambda: ((fresh(batch),), {}))
        assert live.store.index.indexed_end == live.store.log_end


def bench_put(benchmark: BenchmarkFixture) -> None:
    """What happens before the acknowledgement."""
    batch = checked_batch(wire_batch())
    describe(benchmark, "put a batch of 1 KiB bodies", unit="message", count=BATCH_MESSAGES, goal=GOAL)
    with live_store() as live:
        _measure(benchmark, lambda copy: live.store.put([copy], STORE_MS), lambda: ((fresh(batch),), {}))
        assert live.store.messages_stored == (rounds(ROUNDS) + WARM_UP) * BATCH_MESSAGES


def bench_part_patch(benchmark: BenchmarkFixture) -> None:
    batch = checked_batch(wire_batch())
    describe(benchmark, "  part: patch (patch_batch)", unit="message", count=BATCH_MESSAGES)
    entries = benchmark(
        patch_batch, batch, queue_offset=5, log_offset=1_000, store_ms=STORE_MS, store_ip=1, store_port=2
    )
    assert len(entries) == BATCH_MESSAGES * CQ_ENTRY.size


def bench_part_log(benchmark: BenchmarkFixture) -> None:
    data = wire_batch()
    describe(benchmark, "  part: append to the log", unit="message", count=BATCH_MESSAGES)
    with live_store() as live:
        log = live.store.log

        def append(run: bytearray) -> None:
            log.place(len(run))
            log.append(run)

        _measure(benchmark, append, lambda: ((bytearray(data),), {}))
        assert log.end == (rounds(ROUNDS) + WARM_UP) * len(data)


def bench_part_consume_queue(benchmark: BenchmarkFixture) -> None:
    entries = CQ_ENTRY.pack(1_000, 1_200, 7) * BATCH_MESSAGES
    describe(benchmark, "  part: append to the consume queue", unit="message", count=BATCH_MESSAGES)
    with live_store() as live:
        queue = live.store.queues.get_or_open(TOPIC, 0)

        def append() -> None:
            queue.reserve(BATCH_MESSAGES)
            queue.append(entries)

        _measure(benchmark, append, None)
        assert queue.max_offset == (rounds(ROUNDS) + WARM_UP) * BATCH_MESSAGES


def bench_part_index(benchmark: BenchmarkFixture) -> None:
    describe(benchmark, "  part: index (one key a message)", unit="message", count=BATCH_MESSAGES)
    with live_store() as live:
        live.store.put([checked_batch(wire_batch())], STORE_MS)
        live.index_all()  # makes the file

        def put_next() -> tuple[tuple[()], dict[str, Any]]:
            live.store.put([checked_batch(wire_batch(live.store.messages_stored))], STORE_MS)
            return (), {}

        _measure(benchmark, live.index_all, put_next)
        assert live.store.index.indexed_end == live.store.log_end


def bench_part_index_keys(benchmark: BenchmarkFixture) -> None:
    records = wire_batch()
    describe(benchmark, "    of which: find the keys and hash them", unit="message", count=BATCH_MESSAGES)
    keys, size = benchmark(index_keys, records, 0, 0, records_max=BATCH_MESSAGES, keys_max=BATCH_MESSAGES)
    assert (len(keys), size) == (BATCH_MESSAGES, len(records))


def _measure(benchmark: BenchmarkFixture, call: Callable[..., Any], setup: Setup | None) -> None:
    """A fixed number of rounds: each of them makes the store longer."""
    measure(benchmark, call, setup=setup, rounds=rounds(ROUNDS), warm_up_rounds=WARM_UP)
