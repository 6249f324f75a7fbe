"""Pulls of one queue: from memory, from disk by way of a thread (the page cache has it), and by a condition."""

# ruff: noqa: S101 - a measurement of something else than it says is worse than none

from __future__ import annotations

import pytest
from micro_setup import (
    BATCH_MESSAGES,
    BODY_BYTES,
    MIB,
    STORE_MS,
    TOPIC,
    LiveStore,
    checked_batch,
    describe,
    live_store,
    wire_batch,
)
from pytest_benchmark.fixture import BenchmarkFixture

from mq_broker.core.pulling import EVERYTHING, SCAN_RECORDS_MAX, Search, Selection
from mqfilter import parse
from mqproto.record import iter_records

COUNTS = (32, 1_024)
PULL_BYTES = 2 * MIB  # more than 1,024 messages take


@pytest.mark.parametrize("count", COUNTS)
def bench_pull_hot(benchmark: BenchmarkFixture, count: int) -> None:
    describe(benchmark, f"pull {count:,} messages from memory (select_hot)", unit="message", count=count)
    with live_store() as live:
        # One batch holds them all: select_hot does not put several together.
        live.store.put([checked_batch(wire_batch(count=count), count=count)], STORE_MS)
        queue = live.store.queue(TOPIC, 0)
        assert queue is not None
        found = benchmark(live.store.reader.select_hot, queue, 0, EVERYTHING, max_messages=count, max_bytes=PULL_BYTES)
        assert found is not None
        assert len(list(iter_records(found[1]))) == count


@pytest.mark.parametrize("count", COUNTS)
def bench_pull_cold(benchmark: BenchmarkFixture, count: int) -> None:
    describe(benchmark, f"pull {count:,} messages from disk (select_cold)", unit="message", count=count)
    with live_store() as live:
        _fill(live, count)
        queue = live.store.queue(TOPIC, 0)
        assert queue is not None

        def pull() -> bytes:
            selecting = live.store.reader.select_cold(queue, 0, EVERYTHING, max_messages=count, max_bytes=PULL_BYTES)
            return live.loop.run_until_complete(selecting)[1]

        assert len(list(iter_records(benchmark(pull)))) == count


def bench_search(benchmark: BenchmarkFixture) -> None:
    describe(
        benchmark,
        f"look for a property in {SCAN_RECORDS_MAX} messages (Search)",
        unit="message",
        count=SCAN_RECORDS_MAX,
    )
    condition = parse("TAGS <> 'created' OR UNIQ_KEY IS NULL")
    records = wire_batch(count=SCAN_RECORDS_MAX)
    found = Selection(count=SCAN_RECORDS_MAX, scanned=SCAN_RECORDS_MAX)

    def search() -> tuple[Selection, bytes]:
        one = Search(condition, 0, max_messages=32, max_bytes=PULL_BYTES)
        one.look_at(found, records)
        return one.outcome()

    chosen, data = benchmark(search)
    assert (chosen.count, chosen.scanned, data) == (0, SCAN_RECORDS_MAX, b"")


def _fill(live: LiveStore, count: int) -> None:
    live.put_many(count + BATCH_MESSAGES, body_bytes=BODY_BYTES)
