"""What every microbenchmark uses: the messages, the stores, and what a measurement says of itself."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pytest_benchmark.fixture import BenchmarkFixture

from mq_broker.core.batches import Batch, check_batch, patch_batch
from mq_broker.store.layout import COMMIT_LOG_FILE_BYTES, StoreLayout
from mq_broker.store.message_store import FlushDiskType, MessageStore, StoreOptions
from mqproto.properties import TAGS, UNIQ_KEY, encode_properties
from mqproto.record import BODY_BYTES_MAX, encode_record, pack_ip
from osenv import RealClock, RealDisk

TOPIC = "bench"
BATCH_MESSAGES = 64
BODY_BYTES = 1_024
MIB = 1024 * 1024
STORE_MS = 1_700_000_000_000
SCALE_VARIABLE = "HOURGLASS_MICRO_SCALE"  # 1 for the real sizes; set by `micro --quick`

BORN_IP = pack_ip("127.0.0.1")


def message(number: int, *, body_bytes: int = BODY_BYTES, queue_id: int = 0) -> bytes:
    """One record with a unique key of 32 characters and a tag."""
    return encode_record(
        topic=TOPIC.encode(),
        body=bytes(body_bytes),
        properties=encode_properties({UNIQ_KEY: f"{number:032X}", TAGS: "created"}),
        queue_id=queue_id,
        born_timestamp_ms=1_700_000_000_000,
        born_ip=BORN_IP,
    )


def wire_batch(
    first: int = 0, *, count: int = BATCH_MESSAGES, body_bytes: int = BODY_BYTES, queue_id: int = 0
) -> bytes:
    """Messages end to end, as a produce frame carries them."""
    return b"".join(message(number, body_bytes=body_bytes, queue_id=queue_id) for number in range(first, first + count))


def checked_batch(records: bytes, *, count: int = BATCH_MESSAGES, queue_id: int = 0) -> Batch:
    """The batch as the store takes it."""
    return check_batch(TOPIC, queue_id, count, records, BODY_BYTES_MAX)


def sealed_batch(*, count: int = BATCH_MESSAGES) -> bytes:
    """Messages end to end, as a broker gives them to a consumer: from queue offset 0 on."""
    batch = checked_batch(wire_batch(count=count), count=count)
    patch_batch(batch, queue_offset=0, log_offset=0, store_ms=1_700_000_000_000, store_ip=BORN_IP, store_port=10_911)
    return bytes(batch.buffer)


def store_options(root: Path, log_file_bytes: int = COMMIT_LOG_FILE_BYTES) -> StoreOptions:
    """RocketMQ's file sizes; asynchronous flush, which a measurement without a running store never begins."""
    return StoreOptions(StoreLayout(root, log_file_bytes), FlushDiskType.ASYNC_FLUSH, 200, "127.0.0.1", 10_911)


@contextmanager
def temporary_root() -> Iterator[Path]:
    """A folder for one store, where the machine keeps temporary files."""
    with TemporaryDirectory(prefix="hourglass-micro-") as folder:
        yield Path(folder) / "store"


class LiveStore:
    """A store that is put into, with an event loop to run what it does by itself."""

    def __init__(self, root: Path, log_file_bytes: int = COMMIT_LOG_FILE_BYTES) -> None:
        self.disk, self.loop = RealDisk(), asyncio.new_event_loop()
        self.root = root
        self.store = MessageStore(self.disk, RealClock(), store_options(root, log_file_bytes), {})
        self.store.open(lambda record: None)
        self._following: asyncio.Task[None] | None = None

    def put_many(self, count: int, *, body_bytes: int) -> None:
        """`count` messages in batches of 64, not flushed and not indexed yet."""
        for first in range(0, count, BATCH_MESSAGES):
            now = min(BATCH_MESSAGES, count - first)
            records = wire_batch(first, count=now, body_bytes=body_bytes)
            self.store.put([checked_batch(records, count=now)], STORE_MS)

    def index_all(self) -> None:
        """Have the index at the log's end."""
        if self._following is None:
            self._following = self.loop.create_task(self.store.index.run())
        self.loop.run_until_complete(self._indexed())

    def flush(self) -> None:
        """Have everything on disk, and the checkpoint with it."""
        self.loop.run_until_complete(self.store.checkpoint())

    def close(self, *, clean: bool = True) -> None:
        """Stop; not clean is like a kill, after which the next start has to look."""
        self.loop.run_until_complete(self._stop_following())
        if clean:
            self.loop.run_until_complete(self.store.close())
        else:
            self.store.release()
        self.loop.close()
        self.disk.close()

    async def _indexed(self) -> None:
        while self.store.index.indexed_end < self.store.log_end:  # noqa: ASYNC110 - the index sets no event
            await asyncio.sleep(0)

    async def _stop_following(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None


@contextmanager
def live_store(*, log_file_bytes: int = COMMIT_LOG_FILE_BYTES) -> Iterator[LiveStore]:
    """An empty store for the length of a measurement."""
    with temporary_root() as root:
        live = LiveStore(root, log_file_bytes)
        try:
            yield live
        finally:
            live.close(clean=False)


def fresh(batch: Batch) -> Batch:
    """A copy: the store keeps the buffer that it was given."""
    return Batch(batch.topic, batch.queue_id, bytearray(batch.buffer), batch.sizes, batch.tags_codes)


def describe(benchmark: BenchmarkFixture, work: str, *, unit: str, count: float, goal: str = "") -> None:
    """One round does `count` units of `work`; `goal` is a sentence with its source."""
    benchmark.extra_info.update(work=work, unit=unit, count=count, goal=goal)


def scaled(size: int, *, at_least: int = 1) -> int:
    """The size that is measured: the real one, or a part of it in a quick run."""
    return max(at_least, int(size * float(os.environ.get(SCALE_VARIABLE, "1"))))


def rounds(full: int) -> int:
    """How often it is measured."""
    return scaled(full, at_least=3)


def measure(
    benchmark: BenchmarkFixture,
    call: Callable[..., Any],
    *,
    rounds: int,
    setup: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]] | None = None,
    warm_up_rounds: int = 1,
) -> list[float]:
    """Call it so often, with what `setup` gives each time, which is not measured; returns what each took, seconds."""
    benchmark.pedantic(call, setup=setup, rounds=rounds, warmup_rounds=warm_up_rounds)  # type: ignore[no-untyped-call]
    if benchmark.stats is None:
        raise RuntimeError("benchmarks are switched off in this run of pytest")
    return list(benchmark.stats.stats.data)
