"""Figure G2: real power cuts. A real broker under sync flush writes to an ext4 file system, which is shut down at a
seeded moment without its journal being committed, after a random part of the pages in memory has been written back. It
is mounted again, the broker starts on it, and everything is read and compared.

A seed is one file system after the other, each of which lives through several cuts. Invariants: whatever was
acknowledged is there, at its place, byte for byte; whatever a consumer could read before a cut is there after it;
nothing is there that was not sent, and nothing is called damaged. A broker that ends by itself after a cut ends with
code 3.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc
from ext4_image import Ext4Image
from kills import ACKNOWLEDGED_MAX, QUEUES, TIMEOUT_S, TOPIC, read_queues
from numbered_load import Book, Sender, problems
from sweep import Outcome

from hourglass.mq.v1 import broker_service_pb2, broker_service_pb2_grpc
from hourglass_local.cluster import SYNC_FLUSH, Cluster
from hourglass_local.waiting import eventually
from mq_broker.store.log_scan import TAIL_SUFFIX
from mqclient import Admin, Producer
from mqproto.record import RecordError, iter_records
from osenv import SeededRng

CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)  # a back-off shared with the channel before would be ours
CUTS_PER_IMAGE = 5
COMMIT_LOG_FILE_BYTES = 256 * 1024  # so that the log rolls over now and then, and takes long writes in between
IN_FLIGHT = (1, 1, 1, 30, 60, 60)  # of each sender
STARTS_CUT_MAX = 2
UNDER_WAY_S = 0.05  # far longer than a sync takes here
LIVES_ON_MAX_S = 0.5
STOP_CUT_AFTER_MAX_S = 0.5
EXIT_DISK_FAILED = 3
FILE_CHANCE = JOURNAL_CHANCE = 0.8  # to be written back in part, and to be known to the file system
SAID_MAX = 10
STOPS_MAX = 300
DIRTY_PAGES_MAX = 20
LOG_FILES_LOOKED_AT = 4  # the newest one is made before it is needed
# What of the file system's own care the store must not rely on: a rename that brings its content along, and the rest.
MOUNT_OPTIONS = ("", "noauto_da_alloc", "data=writeback,noauto_da_alloc", "nodelalloc,commit=1")


T = TypeVar("T")


class Moment(enum.Enum):
    """When the power goes."""

    UNDER_LOAD = "under load"
    AT_A_ROLL_OVER = "at a roll-over"
    WHILE_STARTING = "while starting"
    WHILE_STOPPING = "while stopping"


class End(enum.Enum):
    """What becomes of the broker when the power goes under load."""

    DIES_WITH_IT = "the broker dies with it"
    STANDS_STILL = "the broker stands still while pages are written back"
    LIVES_ON = "the broker lives on for a moment"


MOMENTS = (*Moment, Moment.UNDER_LOAD)
ENDS = (*End, End.STANDS_STILL, End.STANDS_STILL)


@dataclass(frozen=True, slots=True)
class PowerCutReport:
    """`rounds` cuts under load; `violations` are sentences for people; `counts` how often what happened."""

    rounds: int
    acknowledged: int
    violations: tuple[str, ...]
    counts: Counter[str]


@dataclass
class PowerCuts:
    """One file system, its broker and its load, and what was seen of it so far."""

    image: Ext4Image
    cluster: Cluster
    rng: SeededRng
    book: Book = field(default_factory=Book)
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        (self._broker,) = self.cluster.brokers
        (self._address,) = self.cluster.broker_addresses
        self._senders = [
            Sender(number, TOPIC, number % QUEUES, in_flight, self.book, self.rng.randrange(0, 1 << 32))
            for number, in_flight in enumerate(IN_FLIGHT)
        ]
        self._moments, self._ends = self._deck(MOMENTS), self._deck(ENDS)
        self._seen: dict[int, list[tuple[int, bytes]]] = {}
        self._start_s = 1.0  # how long a start takes, as of the last one

    def _deck(self, cards: Sequence[T]) -> Iterator[T]:
        """All of them in a random order, for ever, so that few cuts try everything too."""
        shuffled = list(cards)
        self.rng.shuffle(shuffled)
        return itertools.cycle(shuffled)

    async def one(self) -> list[str]:
        """Load, cut, perhaps cut again while it starts, start, and compare; returns what is wrong."""
        moment, stop = next(self._moments), asyncio.Event()
        self.counts[moment.value] += 1
        async with Producer("numbers", self.cluster.url) as producer, asyncio.TaskGroup() as tasks:
            for sender in self._senders:
                tasks.create_task(sender.run(producer, stop))
            found = await self._cut_under_load(moment)
            stop.set()
            await self._power_on()
            if moment is Moment.WHILE_STARTING:
                for _ in range(self.rng.randrange(1, STARTS_CUT_MAX + 1)):
                    await self._cut_while_starting()
            started = await self._start()  # what has no answer is sent again
        try:
            stored = await read_queues(self._address)
        except (RuntimeError, RecordError, grpc.aio.AioRpcError) as error:  # it lost the topic, or hands out no records
            return [*found, *started, str(error)]
        found += problems(self.book, stored) + self._changed(stored) + self._called_damaged()
        self._seen = stored
        return found

    async def _start(self) -> list[str]:
        """Why the broker does not start, if so."""
        began = time.monotonic()
        try:
            await self._broker.start(TIMEOUT_S)
        except RuntimeError as error:
            return [str(error)]
        self._start_s = time.monotonic() - began
        return []

    async def _cut_under_load(self, moment: Moment) -> list[str]:
        wanted = len(self.book.acknowledged) + self.rng.randrange(1, ACKNOWLEDGED_MAX)
        await eventually(
            lambda: len(self.book.acknowledged) >= wanted, TIMEOUT_S, f"{wanted} messages", interval_s=0.001
        )
        if moment is Moment.AT_A_ROLL_OVER:
            files = self._log_files()
            await eventually(lambda: self._log_files() > files, TIMEOUT_S, "a roll-over", interval_s=0.0005)
        await self._look_at_the_newest()
        return await (self._cut_while_stopping() if moment is Moment.WHILE_STOPPING else self._cut())

    async def _look_at_the_newest(self) -> None:
        """What a consumer gets to see now has to be there after the cut."""
        async with grpc.aio.insecure_channel(self._address, options=CHANNEL_OPTIONS) as channel:
            stub = broker_service_pb2_grpc.BrokerServiceStub(channel)
            for queue_id in range(QUEUES):
                seen = self._seen.setdefault(queue_id, [])
                request = broker_service_pb2.PullRequest(
                    group="onlookers", topic=TOPIC, queue_id=queue_id, queue_offset=len(seen), max_messages=32,
                    max_bytes=1 << 20, expression="*",
                )  # fmt: skip
                answer = await stub.Pull(request, timeout=TIMEOUT_S)
                seen += [(record.queue_offset, record.body) for record in iter_records(answer.records)]

    async def _cut(self) -> list[str]:
        end = next(self._ends)
        self.counts[end.value] += 1
        if end is End.STANDS_STILL:
            await self._stop_with_dirty_pages()
        self._write_back_and_cut()
        if end is End.LIVES_ON:
            await asyncio.sleep(self.rng.uniform(0.0, LIVES_ON_MAX_S))
        code = self._broker.exit_code
        await self._broker.kill()
        return [] if code in (None, EXIT_DISK_FAILED) else [f"the broker ended with code {code} after the cut"]

    async def _stop_with_dirty_pages(self) -> None:
        """SIGSTOP at a moment at which a good part of the log is in memory only, if one comes soon."""
        wanted = self.rng.randrange(1, DIRTY_PAGES_MAX + 1)
        for _ in range(STOPS_MAX):
            os.kill(self._broker.pid, signal.SIGSTOP)
            log_files = sorted((self.image.root / "store" / "commitlog").iterdir())
            dirty = [self.image.dirty_pages(path) for path in log_files[-LOG_FILES_LOOKED_AT:]]
            pages = sum(count or 0 for count in dirty)
            if None in dirty or pages >= wanted:
                break
            os.kill(self._broker.pid, signal.SIGCONT)
            await asyncio.sleep(self.rng.uniform(0.0, 0.002))
        os.kill(self._broker.pid, signal.SIGSTOP)
        self.counts["pages of the log in memory only"] += pages

    async def _cut_while_stopping(self) -> list[str]:
        stopping = asyncio.create_task(self._broker.terminate())
        await asyncio.sleep(self.rng.uniform(0.0, STOP_CUT_AFTER_MAX_S))
        self._write_back_and_cut()
        await stopping
        return [f"the broker did not stop: {self._broker.tail(3)}"] if self._broker.was_killed_to_stop else []

    async def _cut_while_starting(self) -> None:
        self._broker.launch()
        await asyncio.sleep(self.rng.uniform(0.2, 1.0) * self._start_s)
        self._write_back_and_cut()
        await self._broker.kill()
        await self._power_on()

    def _write_back_and_cut(self) -> None:
        files = sorted(path for path in (self.image.root / "store").rglob("*") if path.is_file())
        self.image.write_back_some([path for path in files if self.rng.random() < FILE_CHANCE], self.rng)
        if self.rng.random() < JOURNAL_CHANCE:
            self.image.commit_journal()
        # A sync that is under way at this moment may be reported as done although its journal commit is gone: ext4
        # drops that silently when it is shut down. A machine without power would not have answered any more.
        self.book.uncertain_until = time.monotonic() + UNDER_WAY_S
        self.image.cut_power()

    async def _power_on(self) -> None:
        self.image.unmount()
        self.image.mount()

    def _log_files(self) -> int:
        return len(os.listdir(self.image.root / "store" / "commitlog"))  # noqa: PTH208

    def _changed(self, stored: dict[int, list[tuple[int, bytes]]]) -> list[str]:
        """What could be read before the cut has to be there still, at its place."""
        return [
            f"queue {queue_id}: what could be read before the cut has changed"
            for queue_id, before in self._seen.items()
            if stored[queue_id][: len(before)] != before
        ]

    def _called_damaged(self) -> list[str]:
        """A cut tears what was not synced yet; of that a part may be cut off and kept, and nothing is damage."""
        kept = (self.image.root / "store" / "quarantine").glob("*")
        return [f"{path.name} is called damaged" for path in kept if not path.name.endswith(TAIL_SUFFIX)]


@asynccontextmanager
async def broker_on(image: Ext4Image, folder: Path, **settings: str) -> AsyncIterator[Cluster]:
    """A name server, and a broker with its store on the image, with the topic."""
    own = {"storePathRootDir": str(image.root / "store")} | settings
    async with Cluster(
        folder, orders=False, flush=SYNC_FLUSH, commit_log_file_bytes=COMMIT_LOG_FILE_BYTES, broker_settings=own
    ) as cluster:
        async with Admin(cluster.url) as admin:
            await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)
        yield cluster


async def _cuts_of_one_image(folder: Path, rng: SeededRng, cuts: int, deadline: float) -> PowerCutReport:
    options = rng.choice(MOUNT_OPTIONS)
    with Ext4Image(folder / "image", options=options) as image:
        async with broker_on(image, folder / "cluster") as cluster:
            run, done, found = PowerCuts(image, cluster, rng), 0, list[str]()
            while done < cuts and not found and time.monotonic() < deadline:
                found = [f"mounted with {options!r}, cut {done + 1}: {problem}" for problem in await run.one()]
                done += 1
            stopped = await cluster.stop()
            if stopped.failed or stopped.leftover:
                found.append(f"the processes did not stop well: {stopped}")
            if found:
                found = [*found[:SAID_MAX], f"{len(found)} sentences in all"]
                kept = image.keep(Path(tempfile.mkdtemp(prefix="hourglass-power-cut-")) / "image")
                found.append(f"the file system is kept in {kept}")
    return PowerCutReport(done, len(run.book.acknowledged), tuple(found), run.counts)


async def run_power_cuts(folder: Path, seed: int, rounds: int, deadline: float = float("inf")) -> PowerCutReport:
    """`rounds` cuts, or as many as there is time for; ends at the first violation. Everything lies below `folder`."""
    rng, done, acknowledged, counts = SeededRng(seed), 0, 0, Counter[str]()
    found: tuple[str, ...] = ()
    while done < rounds and not found and time.monotonic() < deadline:
        part = await _cuts_of_one_image(folder / f"{done}", rng, min(CUTS_PER_IMAGE, rounds - done), deadline)
        done, acknowledged, found = done + part.rounds, acknowledged + part.acknowledged, part.violations
        counts += part.counts
    return PowerCutReport(done, acknowledged, tuple(f"seed {seed}: {one}" for one in found), counts)


def run(seed: int, rounds: int, deadline: float = float("inf")) -> PowerCutReport:
    """The same from the outside, in a folder of its own. `deadline` is of time.monotonic."""
    with tempfile.TemporaryDirectory(prefix="hourglass-power-cuts-") as folder:
        return asyncio.run(run_power_cuts(Path(folder), seed, rounds, deadline))


class PowerCutSweep:
    """The cuts of `make robustness`; a seed is those of one file system."""

    name, figure, unit, goal, share = "power-cuts", "G2", "real power cuts", 5_000, 20

    def run(self, seed: int, deadline: float) -> Outcome:
        report = run(seed, CUTS_PER_IMAGE, deadline)
        return Outcome(report.rounds, report.violations, report.counts | {"acknowledged": report.acknowledged})
