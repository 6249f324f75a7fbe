"""Encoding and decoding records, and the broker's check of a batch: pure work, no disk."""

# ruff: noqa: S101 - a measurement of something else than it says is worse than none

from __future__ import annotations

from micro_setup import BATCH_MESSAGES, checked_batch, describe, sealed_batch, wire_batch
from pytest_benchmark.fixture import BenchmarkFixture

from mqproto.record import iter_records, iter_sealed_records


def bench_encode(benchmark: BenchmarkFixture) -> None:
    describe(benchmark, "encode a batch (mqproto)", unit="message", count=BATCH_MESSAGES)
    assert len(benchmark(wire_batch)) > BATCH_MESSAGES * 1_024


def bench_check(benchmark: BenchmarkFixture) -> None:
    describe(benchmark, "check a batch (check_batch)", unit="message", count=BATCH_MESSAGES)
    assert benchmark(checked_batch, wire_batch()).count == BATCH_MESSAGES


def bench_decode(benchmark: BenchmarkFixture) -> None:
    records = wire_batch()
    describe(benchmark, "decode a batch (iter_records)", unit="message", count=BATCH_MESSAGES)
    assert len(benchmark(lambda: list(iter_records(records)))) == BATCH_MESSAGES


def bench_take_apart(benchmark: BenchmarkFixture) -> None:
    records = sealed_batch()
    describe(benchmark, "prove records, take bodies (iter_sealed_records)", unit="message", count=BATCH_MESSAGES)
    assert len(benchmark(lambda: [record.body for record in iter_sealed_records(records)])) == BATCH_MESSAGES
