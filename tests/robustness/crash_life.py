"""One life of a store on a simulated disk: recovery, work, perhaps clean restarts; and the moments at which it may end.

Invariants: a life depends on nothing but its disk, its history and its random numbers; each call that changes the disk
is a boundary, and what the store had promised until then is noted with it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crash_checks import TALLIES, Opened, Promise, one_batch, open_store
from crash_history import History, Sent, WrongError

from mq_broker.core.batches import Batch
from mq_broker.core.broker_time import BrokerTime
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, MessageStore, PutResult, StoreOptions
from mq_broker.store.retention import Retention
from mqproto.record import decode_record, is_sealed
from osenv import Rng, SeededRng, SimClock, SimDisk

ROOT = Path("/store")
CHANGES = frozenset({"make_dirs", "replace", "unlink", "sync_dir", "pwrite", "sync_data", "allocate", "truncate"})
TOPICS = ("t", "orders", "a-rather-long-name-for-a-topic")
SIZES = ((1, 1), (1, 1), (1, 3), (2, 2), (3, 3))  # topics and queues of a workload
SETTLE_ROUNDS = 200
NEARLY_FULL = 0.87
SYNC = FlushDiskType.SYNC_FLUSH


@dataclass(frozen=True, slots=True)
class Boundary:
    """The moment before one call that changes the disk."""

    number: int
    call: str
    path: Path
    disk: SimDisk
    promise: Promise
    recovering: bool
    wall_ms: int


def small_store(rng: Rng, flush: FlushDiskType) -> StoreOptions:
    """Files that a handful of records fills."""
    layout = StoreLayout(
        ROOT,
        rng.choice((2_048, 4_096, 8_192)),
        rng.choice((6, 10, 40)),
        IndexSize(rng.choice((4, 1_100)), rng.choice((8, 30))),
    )
    return StoreOptions(layout, flush, 200, "127.0.0.1", 10_911, open_files_max=1)


@dataclass
class Life:
    """From a start to whatever ends it. `keeps` chooses the boundaries to look at, by number and whether recovering."""

    disk: SimDisk
    options: StoreOptions
    history: History
    rng: Rng
    clock: SimClock
    floor: int = 0  # records that were promised before this life began
    begins: tuple[int, int] = (0, 0)  # where the log may have begun then
    serial: int = 0  # bodies are numbered from here on
    tally_floors: dict[str, int] = field(default_factory=lambda: dict.fromkeys(TALLIES, 0))
    size: tuple[int, int] = (1, 1)
    body_bytes: int | None = None  # all records have one length: leftovers of a torn one fit behind a new one
    retains: bool = False  # files of the log are deleted now and then
    keeps: Callable[[int, bool], bool] = lambda number, recovering: False
    boundaries: list[Boundary] = field(default_factory=list)
    _ends: dict[bool, Boundary] = field(default_factory=dict)  # one inside a recovery, one outside, chosen at random
    _counts: Counter[bool] = field(default_factory=Counter)
    _recovering: bool = True
    _in_flight: list[tuple[Sent, Batch]] = field(default_factory=list)  # of a put that has not returned
    _opened: Opened | None = None
    _acknowledged_end: int = 0
    _time: BrokerTime | None = None
    _files_to_go: int = 0

    async def run(self, operations: int) -> None:
        """Live. Raises WrongError, and whatever the store raises: nothing fails on this disk."""
        self._end_rng = SeededRng(self.rng.randrange(0, 1 << 60))
        self._end_recovering = self.rng.random() < 0.4
        self.disk.before = self._before
        running = await self._start()
        try:
            for _ in range(operations):
                if self.rng.random() < 0.06:
                    await self._end(running)
                    await self._store.close()
                    self._promised()
                    self._begins()
                    self._opened = None
                    running = await self._start()
                    if self._store.log_end < self.history.end:
                        raise WrongError(f"after a clean stop the log ends at {self._store.log_end}")
                else:
                    await self._operate()
            self._boundary("end", ROOT)
        finally:
            if self.disk.before == self._before:
                self.disk.before = lambda call, path: None
            await self._end(running)

    @property
    def _store(self) -> MessageStore:
        assert self._opened is not None
        return self._opened.store

    async def _start(self) -> asyncio.Task[None]:
        self._recovering = True
        self._opened = await open_store(self.disk, self.clock, self.options)
        store, report = self._opened.store, self._opened.report
        self._time = BrokerTime(
            wall_ms=self.clock.wall_ms(), monotonic=self.clock.monotonic, newest_store_ms=report.newest_store_ms
        )
        await store.checkpoint()
        self._recovering = False
        return asyncio.create_task(store.run())

    async def _end(self, running: asyncio.Task[None]) -> None:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    # ------------------------------------------------------------------------------------------ boundaries

    @property
    def end(self) -> Boundary:
        """Where this life ends for the next one to begin: often in the middle of its recovery."""
        return self._ends[self._end_recovering and True in self._ends]

    def _before(self, call: str, path: Path) -> None:
        if call in CHANGES:
            self._boundary(call, path)
        if call == "unlink" and path.parent == self.options.layout.commit_log:
            self._files_to_go -= 1
            if self._files_to_go <= 0:
                self.disk.used_share = 0.0

    def _boundary(self, call: str, path: Path) -> None:
        recovering = self._recovering
        self._counts[recovering] += 1
        number = self._counts.total()
        kept = self.keeps(number, recovering)
        ends = self._end_rng.random() * self._counts[recovering] < 1
        if not kept and not ends:
            return
        in_flight = sum(batch.count for _, batch in self._in_flight)
        ceiling = len(self.history) + in_flight
        promise = Promise(self.history, self._promised(), ceiling, self._begins(), dict(self.tally_floors))
        moment = Boundary(number, call, path, self.disk.fork(), promise, recovering, self.clock.wall_ms())
        if kept:
            self.boundaries.append(moment)
        if ends:
            self._ends[recovering] = moment

    def promise(self) -> Promise:
        """What must be found when the process dies now, in the middle of whatever it does."""
        promised = self._promised()
        if all(_is_placed(batch) for _, batch in self._in_flight):  # else nothing of it can be in the log yet
            for sent, batch in self._in_flight:
                first = decode_record(bytes(batch.buffer))
                place = PutResult(first.queue_offset, first.log_offset)
                self.history.add(sent, batch, place, self.options.layout.commit_log_file_bytes)
        return Promise(self.history, promised, len(self.history), self._begins(), dict(self.tally_floors))

    def _begins(self) -> tuple[int, int]:
        if self._opened is not None:
            self.begins = self.begins[0], max(self.begins[1], self._opened.store.log_begin)
        return self.begins

    def _promised(self) -> int:
        """Records that were acknowledged, or could be read, or were flushed."""
        if self._opened is None:
            return self.floor
        store = self._opened.store
        durable = store.readable_end if self.options.flush_disk_type is SYNC else store.flusher.durable_end
        self.floor = max(self.floor, self.history.below(max(durable, self._acknowledged_end)))
        return self.floor

    # ------------------------------------------------------------------------------------------ work

    async def _operate(self) -> None:
        rng, store = self.rng, self._store
        match rng.randrange(0, 20):
            case 0 | 1:
                await store.checkpoint()
            case 2:
                await self._persist(rng.choice(TALLIES))
            case 3 | 4:
                await self.clock.advance(rng.choice((0.001, 0.09, 0.2, 1.0)))
            case 5:
                await self._settle()
            case 6 if self.retains:
                await self._retain()
            case 7 | 8 | 9:
                self._put()
            case _:
                self._put()
                if rng.random() < 0.3:
                    self._put()
                end = store.log_end
                await store.wait_stored(end)
                if self.options.flush_disk_type is SYNC:
                    self._acknowledged_end = end

    async def _settle(self) -> None:
        for _ in range(SETTLE_ROUNDS):
            await asyncio.sleep(0)

    async def _retain(self) -> None:
        """The disk is nearly full until a file of the log has gone; perhaps until several have."""
        assert self._time is not None
        retention = Retention(self._store, self.disk, self.clock, self._time, (), _all_consumed)
        self._files_to_go = self.rng.choice((1, 1, 3))
        self.disk.used_share = NEARLY_FULL
        rounds = asyncio.ensure_future(retention.round())
        while not rounds.done():
            await self.clock.advance(0.1)
        self.disk.used_share = 0.0
        retention.close()

    async def _persist(self, name: str) -> None:
        assert self._opened is not None
        tally = self._opened.tallies[name]
        tally.data_version += 1
        await self._store.persist(name)
        self.tally_floors[name] = tally.data_version

    def _put(self) -> None:
        assert self._time is not None
        sent = [self._batch() for _ in range(self.rng.choice((1, 1, 1, 2, 3)))]
        while sum(len(batch.buffer) for _, batch in sent) > self._store.run_bytes_max:
            sent.pop()
        if not sent:
            return
        self._in_flight = sent
        results = self._store.put([batch for _, batch in sent], self._time.stamp_ms())
        self._in_flight = []
        for (one, batch), result in zip(sent, results, strict=True):
            self.history.add(one, batch, result, self.options.layout.commit_log_file_bytes)

    def _batch(self) -> tuple[Sent, Batch]:
        rng = self.rng
        topic, queue_id = TOPICS[rng.randrange(0, self.size[0])], rng.randrange(0, self.size[1])
        tag = rng.choice(("", "created", "paid")) if self.body_bytes is None else ""
        bodies, keys = [], []
        for _ in range(rng.choice((1, 1, 2, 5))):
            size = rng.choice((0, 30, 200, 400, 1_200)) if self.body_bytes is None else self.body_bytes
            bodies.append(b"%08d" % self.serial + rng.randbytes(size))
            keys.append(rng.choice(("", f"k{self.serial}")) if self.body_bytes is None else f"{self.serial:08d}")
            self.serial += 1
        return one_batch(topic, queue_id, bodies, keys, tag)


def _is_placed(batch: Batch) -> bool:
    """Whether every record has got its place and its checksum."""
    at = 0
    for size in batch.sizes:
        if not is_sealed(batch.buffer, at, size):
            return False
        at += size
    return True


async def _all_consumed(log_offset: int) -> Sequence[str]:
    """No group misses what lies below the offset."""
    del log_offset
    return ()
