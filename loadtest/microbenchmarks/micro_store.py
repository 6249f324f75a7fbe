"""Stores on a real disk, made for a measurement and removed after it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from micro_messages import BATCH_MESSAGES, checked_batch, wire_batch

from mq_broker.core.batches import Batch
from mq_broker.store.layout import COMMIT_LOG_FILE_BYTES, StoreLayout
from mq_broker.store.message_store import FlushDiskType, MessageStore, StoreOptions
from osenv import RealClock, RealDisk

MIB = 1024 * 1024
STORE_MS = 1_700_000_000_000


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
        while self.store.index.indexed_end < self.store.log_end:  # noqa: ASYNC110 - the index tells nobody
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
