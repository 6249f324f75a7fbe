"""The store that is damaged byte by byte: about 1 MiB, made by the production broker on a simulated disk.

Two images of it: after a clean stop, and after a kill with some messages behind the last checkpoint. Both hold records
of mixed sizes over several log files, messages of delay levels and of the timer (waiting, delivered, taken back), open
and ended transactions, an index of two files, states with their previous versions. Everything in them is acknowledged
under sync flush.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mq_broker.core.batches import CQ_ENTRY
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.store.index import HEAD as INDEX_HEAD
from mq_broker.store.index import IndexHead, IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.log_scan import Blank, scan_log
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.testing import STORE_ROOT, half, incoming, produce, producer_record, running_broker, timed
from mqproto.record import SEGMENT_HEAD, Record
from osenv import SeededRng, SimClock, SimDisk

SEED = 1  # the store is always the same one
LOG_FILE_BYTES = 128 * 1024
LAYOUT = StoreLayout(STORE_ROOT, LOG_FILE_BYTES, 100, IndexSize(slots=200, entries=700))
OPTIONS = StoreOptions(LAYOUT, FlushDiskType.SYNC_FLUSH, 200, "127.0.0.1", 10_911)
QUEUES = (("orders", 0), ("orders", 1), ("orders", 2), ("payments", 0), ("payments", 1))
ROUNDS, ROUND_S = 14, 4.0  # three rounds and more between two checkpoints, the last ones behind the last checkpoint
BATCHES, BATCH_RECORDS_MAX = 6, 8
SNAPSHOT_ROUNDS = (3, 6, 9)
DELAY_DELIVERED, DELAY_WAITING = 1, 18
TIMED_DELIVERED_MS, TIMED_WAITING_MS = 1_500, 30 * 86_400_000
RECALLED_ROUNDS = 4  # in every fourth round what was sent for a time far away is taken back
CHECKPOINT_USED_BYTES = 124
WATERMARK_SLOT_BYTES, WATERMARK_USED_BYTES = 512, 12

QueueKey = tuple[str, int]


@dataclass
class Image:
    """One state of the store's files, and what is in it."""

    name: str
    disk: SimDisk
    older: list[dict[Path, bytes]]  # what the files were at earlier moments
    wall_ms: int  # when it was made; nothing that waits in it is due then
    files: dict[Path, bytes] = field(init=False)
    log_end: int = 0
    records: list[Record] = field(default_factory=list)  # by log offset
    blanks: list[Blank] = field(default_factory=list)
    queue_ends: dict[Path, int] = field(default_factory=dict)  # bytes in use, by folder of the queue
    index_ends: dict[Path, int] = field(default_factory=dict)  # bytes in use

    def __post_init__(self) -> None:
        self.files = self.disk.contents()

    def is_used(self, path: Path, at: int) -> bool:
        """Whether the byte at `at` of the file has a meaning."""
        return any(at in stretch for stretch in self.used(path))

    def used(self, path: Path) -> list[range]:
        """The bytes of the file that mean something.

        Those do not that were never written, those behind a blank's head, the unused rest of checkpoint and watermark,
        and the checkpoint before, which is not read.
        """
        if path.parent == LAYOUT.commit_log:
            begin = int(path.name)
            end = min(self.log_end, begin + LOG_FILE_BYTES)
            blank = next((one.log_offset for one in self.blanks if begin <= one.log_offset < end), None)
            return [range(end - begin if blank is None else blank + SEGMENT_HEAD.size - begin)]
        if path.is_relative_to(LAYOUT.consume_queues):
            return [range(min(self.queue_ends[path.parent] - int(path.name), LAYOUT.consume_queue_file_bytes))]
        if path.parent == LAYOUT.index:  # entry 0 does not exist
            size = LAYOUT.index_size
            return [range(size.entry_at(0)), range(size.entry_at(1), self.index_ends[path])]
        if path == LAYOUT.checkpoint:
            return [range(CHECKPOINT_USED_BYTES)]
        if path == LAYOUT.watermark:
            return [range(at, at + WATERMARK_USED_BYTES) for at in (0, WATERMARK_SLOT_BYTES)]
        return [range(0 if path.name == f"{LAYOUT.checkpoint.name}.bak" else len(self.files[path]))]

    def log_file(self, log_offset: int) -> tuple[Path, int]:
        """The file that holds this offset, and where in it."""
        begin = log_offset - log_offset % LOG_FILE_BYTES
        return LAYOUT.commit_log / f"{begin:020d}", log_offset - begin

    def hit(self, path: Path, positions: list[int]) -> list[Record]:
        """The records of which a byte stands at one of these positions of the file."""
        if path.parent != LAYOUT.commit_log:
            return []
        numbers = {bisect_right(self.records, int(path.name) + at, key=_begin) - 1 for at in positions}
        found = [self.records[number] for number in sorted(numbers) if number >= 0]
        return [one for one in found if any(int(path.name) + at < one.log_offset + one.size for at in positions)]

    async def survey(self, broker: Broker) -> None:
        """Learn from the broker that has this store open, and from its log, what stands where."""
        self.log_end = broker.store.log_end
        for queue in broker.store.queues:
            self.queue_ends[LAYOUT.consume_queue(queue.topic, queue.queue_id)] = queue.max_offset * CQ_ENTRY.size
        for found in scan_log(broker.store.log.files, 0, self.log_end):
            if isinstance(found, Record):
                self.records.append(found)
            elif isinstance(found, Blank):
                self.blanks.append(found)
            else:
                raise RuntimeError(f"the store to be damaged is damaged already: {found}")  # noqa: TRY004
        for path, content in self.files.items():
            if path.parent == LAYOUT.index:
                next_number = IndexHead(*INDEX_HEAD.unpack_from(content)).next_number
                self.index_ends[path] = LAYOUT.index_size.entry_at(next_number)


def _begin(record: Record) -> int:
    return record.log_offset


@asynccontextmanager
async def opened(
    disk: SimDisk, clock: SimClock, options: StoreOptions = OPTIONS, *, clean_stop: bool = True
) -> AsyncIterator[Broker]:
    """A broker at work on the disk, its index up to date."""
    async with running_broker(disk, clock, store=options, clean_stop=clean_stop) as broker:
        await clock.advance(0)
        yield broker


async def build_images() -> tuple[Image, Image]:
    """(after a clean stop, after a kill)."""
    disk, clock, rng = SimDisk(), SimClock(), SeededRng(SEED)
    older: list[dict[Path, bytes]] = []
    async with opened(disk, clock) as broker:
        for number in range(ROUNDS):
            await _round(broker, rng, number)
            if number + 1 < ROUNDS:
                await clock.advance(ROUND_S)
            if number in SNAPSHOT_ROUNDS:
                older.append(disk.contents())
        killed = Image("killed", disk.fork(), older, clock.wall_ms())
        killed.disk.kill()
        await killed.survey(broker)
    clean = Image("clean", disk.fork(), older, clock.wall_ms())
    async with opened(disk, clock, clean_stop=False) as broker:
        await clean.survey(broker)
    return clean, killed


async def _round(broker: Broker, rng: SeededRng, number: int) -> None:
    queue = rng.choice(QUEUES)
    if (end := broker.store.queue_end(*queue)) > 2:
        broker.offsets.commit("auditors", [(*queue, Progress(min(number, end - 2), ((end - 1, end),)))])
    for batch in range(BATCHES):
        topic, queue_id = rng.choice(QUEUES)
        count = rng.randrange(1, BATCH_RECORDS_MAX + 1)
        keys = [f"key-{number}-{batch}-{index}" for index in range(count)]
        records = [
            producer_record(topic, _body(rng), queue_id=queue_id, tag=rng.choice(("paid", "closed", "")), key=key)
            for key in keys
        ]
        await produce(broker, IncomingBatch(topic, queue_id, count, b"".join(records)))
    await produce(broker, incoming("orders", [b"soon %d" % number], queue_id=1, delay_level=DELAY_DELIVERED))
    await produce(broker, incoming("orders", [b"late %d" % number], queue_id=2, delay_level=DELAY_WAITING))
    await produce(broker, timed("orders", b"at a time", delay_ms=TIMED_DELIVERED_MS, unique_id=f"timed-{number}"))
    await produce(broker, timed("orders", b"some time", delay_ms=TIMED_WAITING_MS, unique_id=f"far-{number}"))
    if number % RECALLED_ROUNDS == 0:
        await broker.recalling.recall("orders", f"far-{number}")
    transaction = f"transaction-{number}"
    await produce(broker, half("payments", b"half %d" % number, transaction))
    ends = (TransactionState.COMMIT_MESSAGE, TransactionState.ROLLBACK_MESSAGE, None)
    state = ends[number % len(ends)]
    if state is not None:
        await broker.transactions.end("shop", transaction, state, from_check=False)
    broker.groups.get_or_create(f"group-{number // 4}")


def _body(rng: SeededRng) -> bytes:
    size = rng.choice((20, 60, 150, 300, 300, 600, 1_500, 3_000, 9_000))
    return rng.randbytes(size)
