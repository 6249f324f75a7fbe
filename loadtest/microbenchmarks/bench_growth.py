"""Whether a message costs more when many are stored already: two stores, measured in turns."""

# ruff: noqa: S101 - a measurement of something else than it says is worse than none

from __future__ import annotations

import statistics
from contextlib import ExitStack
from itertools import cycle
from typing import Any

from micro_setup import (
    BATCH_MESSAGES,
    BORN_IP,
    MIB,
    STORE_MS,
    TOPIC,
    LiveStore,
    checked_batch,
    describe,
    fresh,
    live_store,
    measure,
    rounds,
    scaled,
    wire_batch,
)
from pytest_benchmark.fixture import BenchmarkFixture

from mq_broker.core.batches import Batch
from mqproto.properties import UNIQ_KEY, encode_properties
from mqproto.record import encode_record

FEW, MANY = 10_000, 10_000_000
LOG_FILE_BYTES = 128 * MIB  # instead of 1 GiB, of which the last ones stand half empty: all is to fit into 3 GiB
FILL_BODY_BYTES = 90
FILL_BATCH = 10_000
ROUNDS = 1_000  # of each of the two
QUEUES = 4
KEY = b"%08X"


def bench_put_into_few_and_into_many(benchmark: BenchmarkFixture) -> None:
    """The same batch goes into both stores in turns; the medians are compared, not the times of two runs."""
    few, many = min(FEW, scaled(MANY)), scaled(MANY)
    batch = checked_batch(wire_batch())
    with ExitStack() as stack:
        stores = [stack.enter_context(live_store(log_file_bytes=LOG_FILE_BYTES)) for _ in range(2)]
        for live, count in zip(stores, (few, many), strict=True):
            _fill(live, count)
        turn = cycle(stores)

        def prepare() -> tuple[tuple[LiveStore, Batch], dict[str, Any]]:
            return (next(turn), fresh(batch)), {}

        def put(live: LiveStore, copy: Batch) -> None:
            live.store.put([copy], STORE_MS)
            live.index_all()

        work = f"put and index a batch with {few:,} and with {many:,} stored, in turns"
        describe(benchmark, work, unit="message", count=BATCH_MESSAGES, goal="within 10 % of each other")
        took = measure(benchmark, put, setup=prepare, rounds=2 * rounds(ROUNDS), warm_up_rounds=20)
        medians = [statistics.median(took[first::2]) for first in range(2)]
        benchmark.extra_info.update(
            stored=[few, many],
            medians_us_per_message=[median / BATCH_MESSAGES * 1e6 for median in medians],
            many_to_few=medians[1] / medians[0],
        )


def _fill(live: LiveStore, count: int) -> None:
    """Small messages with a key each, by batches of ten thousand, over four queues; on disk and indexed."""
    template = [_small_message(queue_id) for queue_id in range(QUEUES)]
    size, key_at = len(template[0]), template[0].index(KEY % 0)
    queue_ids = cycle(range(QUEUES))
    for first in range(0, count, FILL_BATCH):
        number = min(FILL_BATCH, count - first)
        queue_id = next(queue_ids)
        one = template[queue_id]
        head, tail = one[:key_at], one[key_at + len(KEY % 0) :]
        records = (head + KEY % key + tail for key in range(first, first + number))
        buffer = bytearray().join(records)
        code = checked_batch(one, count=1, queue_id=queue_id).tags_codes[0]
        live.store.put([Batch(TOPIC, queue_id, buffer, [size] * number, [code] * number)], STORE_MS)
        live.index_all()
    live.flush()
    assert live.store.messages_stored == count


def _small_message(queue_id: int) -> bytes:
    return encode_record(
        topic=TOPIC.encode(),
        body=b"." * FILL_BODY_BYTES,
        properties=encode_properties({UNIQ_KEY: (KEY % 0).decode()}),
        queue_id=queue_id,
        born_timestamp_ms=STORE_MS,
        born_ip=BORN_IP,
    )
