"""The life of a broker that uses everything its store can do, on a disk on which one call fails, or all of a kind.

Invariants: until the fault every run of a scenario makes the same calls in the same order; what the broker may do
after it is written down here, and anything else is a violation.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fault_journal import BrokenPromiseError, Journal, QueueKey, ReadRejectedError

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import RejectedError
from mq_broker.core.topics import TopicConfig
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import BatchOutcome, IncomingBatch
from mq_broker.store.errors import StoreError
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.testing import broker_options, half, producer_record
from mqproto.codes import ResponseCode
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_disk import ShortWriteError

ROOT = Path("/store")
LAYOUT = StoreLayout(ROOT, 4_096, 8, IndexSize(3, 12))
OPTIONS = StoreOptions(LAYOUT, FlushDiskType.SYNC_FLUSH, 200, "127.0.0.1", 10_911, open_files_max=2)
QUEUES: tuple[QueueKey, ...] = (("t", 0), ("t", 1), ("orders", 0))
DOOMED = ("doomed", 0)  # its records get damaged
LEVEL_1S, LEVEL_1M = 1, 5
SYNCS = frozenset({"sync_data", "sync_dir"})
NEARLY_FULL, ROOMY = 0.87, 0.1


class EndedError(Exception):
    """The process is gone, and with it its callers."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong: call number `number` (from 1), and perhaps what comes after it."""

    number: int
    kind: str  # EIO, ENOSPC, EINTR, or SHORT: some bytes of a write arrive, then the disk is full
    mode: str  # ONCE, FOREVER: every call of the same method, or DEAD: every call

    def error(self, call: str) -> OSError | None:
        """What the call raises; None when this cannot happen to such a call."""
        if self.kind == "SHORT":
            return ShortWriteError(errno.ENOSPC, "simulated: short write", 37) if call == "pwrite" else None
        number = getattr(errno, self.kind)
        return OSError(number, f"simulated: {self.kind}")


@dataclass
class FaultyCalls:
    """The disk's hook: counts, and fails as it is told. `syncs_after` are syncs of the log after one had failed."""

    fault: Fault | None = None
    count: int = 0
    method: str = ""  # of the call that failed
    path: Path = ROOT
    sync_failed: bool = False
    log_sync_failed: bool = False
    reserved_failed: bool = False  # a write for which there was room
    syncs_after: int = 0
    watch: Callable[[str, Path], None] = lambda call, path: None

    def __call__(self, call: str, path: Path) -> None:
        self.count += 1
        self.watch(call, path)
        if self.log_sync_failed and call == "sync_data" and path.parent == LAYOUT.commit_log:
            self.syncs_after += 1
        fault = self.fault
        if fault is None or not self._hits(fault, call):
            return
        error = fault.error(call)
        if error is not None:
            if not self.method:
                self.method, self.path = call, path
            self.sync_failed |= call in SYNCS
            self.log_sync_failed |= call in SYNCS and LAYOUT.commit_log in (path, path.parent)
            self.reserved_failed |= call == "pwrite" and LAYOUT.consume_queues in path.parents
            raise error

    def _hits(self, fault: Fault, call: str) -> bool:
        if self.count <= fault.number or not self.method:
            return self.count == fault.number
        return fault.mode == "DEAD" or (fault.mode == "FOREVER" and self.method == call)

    @property
    def reads_fail(self) -> bool:
        """Whether a consumer may hear that the disk cannot be read: a file without a descriptor is opened for that."""
        return self.method in {"pread", "open"} or (self.fault is not None and self.fault.mode == "DEAD")

    @property
    def fences(self) -> bool:
        """Whether the broker may stop for good: after a failed sync, or when a reserved place could not be written."""
        return self.sync_failed or self.reserved_failed


@dataclass
class BrokerLife:
    """One run. `wrong` are sentences about what must not be."""

    disk: SimDisk
    journal: Journal
    calls: FaultyCalls
    clock: SimClock
    serial: int = 0
    wrong: list[str] = field(default_factory=list)
    started: bool = False
    fenced: bool = False
    last_code: ResponseCode = ResponseCode.SUCCESS
    _halted: bool = False
    _step: str = "start"

    async def run(self, steps: Callable[[BrokerLife], Coroutine[Any, Any, None]]) -> None:
        """Live through `steps`. What is wrong stands in `wrong` afterwards; nothing is raised."""
        self.disk.before = self._before
        try:
            await self._start()
            if self.started:
                await self._live(steps)
        finally:
            self.disk.before = lambda call, path: None

    async def _start(self) -> None:
        try:
            self.broker = Broker(self.disk, self.clock, broker_options(), OPTIONS, SeededRng(1))
            await self.broker.open()
        except (OSError, StoreError) as error:
            self._check(self.calls.method != "", f"the start is rejected although nothing failed: {error!r}")
        except Exception as error:  # whatever it is
            self.wrong.append(f"the start ends with {error!r}")
        else:
            self.started = True

    async def _live(self, steps: Callable[[BrokerLife], Coroutine[Any, Any, None]]) -> None:
        self._running = asyncio.create_task(self.broker.run())
        try:
            await steps(self)
        except EndedError:
            pass
        except Exception as error:
            self.wrong.append(f"{self._step}: {error!r}")
        finally:
            await self.halt()

    # ------------------------------------------------------------------------------------------ steps

    async def produce(self, key: QueueKey, *sizes: int, delay_level: int = 0) -> None:
        """One batch, with a key for each message."""
        bodies = []
        for size in sizes:
            self.serial += 1
            bodies.append((b"%06d" % self.serial).ljust(size, b"."))
        batch = batch_of(key, bodies, delay_level=delay_level)
        fenced_before = self.calls.sync_failed
        outcome = await self.step(f"produce {bodies[0][:6].decode()}", self._produce(batch))
        if outcome is None:
            self.journal.known.update(bodies)
            return
        self.journal.sent(key, bodies, outcome, delayed=bool(delay_level))
        self._check(
            outcome.code is not ResponseCode.SUCCESS or not fenced_before, "acknowledged after a sync has failed"
        )
        self._check(
            outcome.code is ResponseCode.SUCCESS or self.calls.method != "", f"rejected for nothing: {outcome.remark}"
        )
        self.last_code = outcome.code

    async def _produce(self, batch: IncomingBatch) -> BatchOutcome:
        outcomes = self.broker.producing.put([batch])
        (outcome,) = await self.broker.producing.acknowledge(outcomes, self.broker.store.log_end)
        return outcome

    async def transaction(self, id_: str, end: TransactionState | None) -> None:
        """A half message, and perhaps its end."""
        outcome = await self.step(f"half {id_}", self._produce(half("t", id_.encode(), id_)))
        if outcome is not None and outcome.code is ResponseCode.SUCCESS and end is not None:
            self.journal.known.add(id_.encode())
            await self.step(f"end {id_}", self.broker.transactions.end("shop", id_, end, from_check=False))

    async def pass_time(self, seconds: float) -> None:
        """Everything that happens by itself meanwhile."""
        self._step = f"{seconds} s pass"
        await self.clock.advance(seconds)
        self._look_at_the_broker()

    async def read(self) -> None:
        """Everything that was promised can be read, unless reading is what fails."""
        try:
            await self.step("read", self.journal.compare(self.broker))
        except ReadRejectedError as error:
            self._check(self.calls.reads_fail, f"reading is rejected after a failed {self.calls.method}: {error}")

    async def ask(self, name: str, question: Awaitable[Any]) -> None:
        """Something that may be rejected when a disk call has failed."""
        await self.step(name, question)

    async def halt(self) -> None:
        """Nothing happens by itself any more."""
        self._halted = True
        self._running.cancel()
        await asyncio.gather(self._running, return_exceptions=True)

    async def close(self) -> None:
        """A clean stop."""
        await self.halt()
        await self.step("close", self.broker.close())

    async def step(self, name: str, work: Awaitable[Any]) -> Any:
        """The result of `work`; None when it was rejected. Raises what no caller of the broker should ever see."""
        self._step = name
        task = asyncio.ensure_future(work)
        for _ in range(3):
            await self.clock.advance(0.001)
            if task.done():
                break
            self._look_at_the_broker()
        else:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self.wrong.append(f"{name}: no answer")
            return None
        try:
            return task.result()
        except (OSError, StoreError, RejectedError) as error:
            self._check(self.calls.method != "", f"rejected for nothing: {error!r}")
            return None

    def _before(self, call: str, path: Path) -> None:
        self.calls(call, path)
        if call == "unlink" and path.parent == LAYOUT.commit_log:
            self.disk.used_share = ROOMY  # one file of the log was enough

    def _look_at_the_broker(self) -> None:
        """Whether it still runs, and if not, whether that is right."""
        self.journal.expired_below = self.broker.store.log_begin
        if not self._running.done() or self._halted or self.fenced:
            return
        self.fenced = True
        error = self._running.exception()
        if error is not None:
            self._check(
                False, f"the broker ends with {error!r} after a failed {self.calls.method} of {self.calls.path}"
            )
            raise EndedError
        self._check(self.calls.fences, f"the broker stops after a failed {self.calls.method} of {self.calls.path}")

    def _check(self, right: bool, text: str) -> None:
        if not right:
            self.wrong.append(f"{self._step}: {text}")


def batch_of(key: QueueKey, bodies: Sequence[bytes], *, delay_level: int = 0) -> IncomingBatch:
    """As a client sends it; the first six bytes of a body are its key."""
    records = [
        producer_record(key[0], body, queue_id=key[1], key=body[:6].decode(), delay_level=delay_level)
        for body in bodies
    ]
    return IncomingBatch(key[0], key[1], len(records), b"".join(records))


async def whole_life(life: BrokerLife) -> None:
    """Everything, in an order that makes each part of the store work."""
    await life.produce(("later", 0), 30, delay_level=LEVEL_1S)
    await life.produce(("later", 0), 30, 60, delay_level=LEVEL_1M)
    await life.transaction("committed", TransactionState.COMMIT_MESSAGE)
    await life.transaction("open", None)
    for size in (500, 300, 700):
        for key in QUEUES:
            await life.produce(key, size, 40)
    await life.read()
    await life.ask("commit offsets", commit_offsets(life, 1))
    await life.ask("update a topic", life.broker.topic_administration.update(TopicConfig("fresh", 2, 2)))
    await life.pass_time(5.1)
    await life.ask("query", query(life))
    await life.ask("back up", back_up(life))
    await life.ask("commit offsets", commit_offsets(life, 2))
    await life.pass_time(6)
    for key in QUEUES:
        await life.produce(key, *[60] * 9)
    await life.read()
    life.disk.used_share = NEARLY_FULL
    await life.pass_time(11)
    life.disk.used_share = ROOMY
    await life.read()
    await life.pass_time(11)
    await goes_on(life)
    await life.close()


async def goes_on(life: BrokerLife) -> None:
    """What met an error once and has not failed a sync accepts messages, and gives them back."""
    fault = life.calls.fault
    for key in (*QUEUES, *QUEUES):
        well = life.calls.method != "" and (fault is None or fault.mode == "ONCE")
        await life.produce(key, 200)
        if well and not life.calls.fences and life.last_code is not ResponseCode.SUCCESS:
            raise BrokenPromiseError(f"after one failed {life.calls.method} of {life.calls.path} it goes on rejecting")
    await life.read()


async def commit_offsets(life: BrokerLife, offset: int) -> None:
    """Of as many messages as there are: a disk that fails may have rejected them."""
    ends = {key: life.broker.store.queue_end(*key) for key in QUEUES if life.broker.topics.get(key[0])}
    life.broker.offsets.commit("readers", [(*key, Progress(min(offset, end))) for key, end in ends.items()])


async def back_up(life: BrokerLife) -> None:
    async for _ in life.broker.backup.parts():
        pass


async def query(life: BrokerLife) -> None:
    querying = life.broker.querying
    await querying.by_key("t", "000001", max_messages=10, begin_ms=0, end_ms=0)
    await querying.offset_by_time("t", 0, life.clock.wall_ms())
