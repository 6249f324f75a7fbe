"""Where things are below the store's root, and how large the files are (MISSION S1-S3, S7)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.store.index_file import IndexSize
from mqproto.codes import VERSION_PATH

COMMIT_LOG_FILE_BYTES = 1024 * 1024 * 1024
CONSUME_QUEUE_FILE_ENTRIES = 300_000
CONSUME_QUEUE_AHEAD_BYTES = 64 * 1024  # blocks of a sparse consume-queue file allocated ahead of its end
CHECKPOINT_BYTES = 4_096


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """Paths and sizes; sizes are RocketMQ's unless a test makes them small."""

    root: Path
    commit_log_file_bytes: int = COMMIT_LOG_FILE_BYTES
    consume_queue_file_entries: int = CONSUME_QUEUE_FILE_ENTRIES
    index_size: IndexSize = field(default_factory=IndexSize)

    @property
    def commit_log(self) -> Path:
        return self.root / "commitlog"

    @property
    def consume_queues(self) -> Path:
        return self.root / "consumequeue"

    def consume_queue(self, topic: str, queue_id: int) -> Path:
        return self.consume_queues.joinpath(topic, str(queue_id))

    @property
    def consume_queue_file_bytes(self) -> int:
        return self.consume_queue_file_entries * CQ_ENTRY.size

    @property
    def index(self) -> Path:
        return self.root / "index"

    @property
    def timer(self) -> Path:
        return self.root / "timer"

    @property
    def timer_manifest(self) -> Path:
        return self.timer / "runs.json"

    @property
    def config(self) -> Path:
        return self.root / "config"

    @property
    def queue_numbers(self) -> Path:
        return self.config / "queueNumbers.json"

    @property
    def version(self) -> Path:
        return self.root / VERSION_PATH

    @property
    def abort(self) -> Path:
        return self.root / "abort"

    @property
    def checkpoint(self) -> Path:
        return self.root / "checkpoint"

    @property
    def watermark(self) -> Path:
        return self.root / "watermark"

    @property
    def quarantine(self) -> Path:
        return self.root / "quarantine"

    @property
    def lock(self) -> Path:
        return self.root / "lock"
