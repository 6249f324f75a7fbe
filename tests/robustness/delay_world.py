"""Messages that wait on a real broker in memory, and everything that may happen to them
(docs/reference/faults.md#store).

One topic, delay levels, the timer, recalls; a broker that stops, dies and loses its power at any call of the disk,
whose wall clock jumps, whose disk rejects writes, whose files are lost. `delay_model.py` says what must stay true; this
file makes it happen.
"""

from __future__ import annotations

import asyncio
import errno
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import permutations
from pathlib import Path
from typing import Any

from delay_faults import Fork, damage_files
from delay_model import LOST, PLAIN, Arrival, DelayModel, InvariantError, Message, Waiting

from mq_broker.core.delays import DelayLevels
from mq_broker.core.documents import TOPICS
from mq_broker.core.limits import RejectedError
from mq_broker.core.topics import TIMER
from mq_broker.processor.broker import Broker
from mq_broker.processor.producing import IncomingBatch
from mq_broker.processor.recalling import NewTime
from mq_broker.schedule.timer_queue import TimerQueue
from mq_broker.schedule.timer_runs import DamagedRunError
from mq_broker.store.index import IndexSize
from mq_broker.store.layout import StoreLayout
from mq_broker.store.message_store import FlushDiskType, StoreOptions
from mq_broker.testing import STORE_ROOT, broker_options, produce, producer_record, store_options
from mqproto.codes import ResponseCode
from mqproto.properties import TIMER_DELAY_MS, TIMER_DELIVER_MS, UNIQ_KEY
from mqproto.record import Record
from osenv import SeededRng, SimClock, SimDisk

TOPIC, QUEUES = "orders", 2
KEYS = ("", "a", "b")
TABLES = ("1s 5s 1m 1h", "2s 3s 10s", "5s 1h 1h 1h 1h", "1s 1s 1s 1s")
LOG_FILE_BYTES, QUEUE_FILE_ENTRIES = 8_192, 20
LAYOUT = StoreLayout(STORE_ROOT, LOG_FILE_BYTES, QUEUE_FILE_ENTRIES, IndexSize(slots=16, entries=64))
FULL = 0.95
FORCED = 0.85  # files of the log go before their time
A_DAY_MS = 86_400_000
# Work takes no time here: the clock stands still until nothing is left to run. To build the timer's index anew for 260
# messages took 1,136 rounds of the event loop.
SETTLE_ROUNDS = 100_000
CHANGES = frozenset({"pwrite", "sync_data", "sync_dir", "replace", "unlink", "allocate", "truncate"})


class DelayWorld:
    """The history of one broker. Every method is one thing that happens."""

    def __init__(self, flush: FlushDiskType) -> None:
        self.disk, self.clock = SimDisk(), SimClock(settle_rounds=SETTLE_ROUNDS)
        self.model = DelayModel(DelayLevels.parse(TABLES[0]))
        self._store = replace(store_options(flush=flush, log_file_bytes=LOG_FILE_BYTES), layout=LAYOUT)
        self._table = TABLES[0]
        self._rejecting_since: int | None = None
        self._is_answered = True  # False: the caller is dead before the answer comes
        self._jobs: list[asyncio.Task[None]] = []
        self._fork: Fork | None = None
        self._seen_to: dict[int, int] = defaultdict(int)

    @property
    def options(self) -> StoreOptions:
        return self._store

    async def open(self) -> None:
        await self._start()
        self.broker.topics.ensure_for_arrival(TOPIC, 0)
        await self.broker.store.persist(TOPICS)
        await self._look()

    # ------------------------------------------------------------------------------------------------ messages

    async def send(
        self,
        count: int,
        *,
        level: int = PLAIN,
        delay_ms: int | None = None,
        deliver_in_ms: int | None = None,
        key: str = "",
        padding: int = 0,
    ) -> None:
        """So many messages with one call: of a level, with a delay, for a time from now, or plain."""
        now_ms = self.broker.time.stamp_ms()
        asked = {TIMER_DELAY_MS: delay_ms}
        if deliver_in_ms is not None:
            asked[TIMER_DELIVER_MS] = max(0, self._wall_ms(now_ms) + deliver_in_ms)
        wait_ms = delay_ms if delay_ms is not None else max(0, deliver_in_ms or 0)
        queue = TIMER if delay_ms is not None or deliver_in_ms is not None else self.model.table.effective(level)
        if queue > PLAIN:
            wait_ms = self.model.table.delay_ms(queue)
        messages = [self._new(queue, key) for _ in range(count)]
        batches = [self._batch(message, level, asked, padding) for message in messages]
        outcomes = await produce(self.broker, *batches)
        for message, outcome in zip(messages, outcomes, strict=True):
            if outcome.code is ResponseCode.SUCCESS:
                by_wall = deliver_in_ms is not None
                promised_ms = (self._wall_ms(now_ms) if by_wall else now_ms) + wait_ms
                waiting = Waiting(queue, now_ms, promised_ms, outcome.base_log_offset, by_wall)
                self.model.sent(message, waiting, self.broker.store.log_end, answered=self._is_answered)
            else:
                assert self._rejecting_since is not None, outcome.remark

    def _new(self, queue: int, key: str) -> Message:
        number = len(self.model.messages)
        message = Message(number, number % QUEUES, key, queue, [(0, frozenset({LOST}))])
        self.model.messages.append(message)
        return message

    def _batch(self, message: Message, level: int, asked: dict[str, int | None], padding: int) -> IncomingBatch:
        properties = {UNIQ_KEY: message.id} | {name: str(ms) for name, ms in asked.items() if ms is not None}
        body = b"%06d" % message.number + bytes(padding)
        record = producer_record(
            TOPIC, body, queue_id=message.queue_id, key=message.key, delay_level=level, properties=properties
        )
        return IncomingBatch(TOPIC, message.queue_id, 1, record)

    async def recall(self, key: str, *, new_time: NewTime | None = None) -> None:
        """Take back what has the key, or give it another time."""
        (await self._answer_of_recall(key, new_time))(self.model)

    async def _answer_of_recall(self, key: str, new_time: NewTime | None) -> Callable[[DelayModel], None]:
        """What the model has to be told of the answer."""
        now_ms = self.broker.time.stamp_ms()
        by_wall = new_time is not None and new_time.delay_ms is None
        new_due_ms = _due_ms(new_time, self._wall_ms(now_ms) if by_wall else now_ms) if new_time else None
        try:
            answer = await self.broker.recalling.recall(TOPIC, key, new_time)
        except (RejectedError, OSError):
            if self._rejecting_since is None:
                raise
            end = self.broker.store.log_end
            return lambda model: model.perhaps_recalled(key, new_due_ms, end, now_ms, by_wall=by_wall)
        assert not answer.truncated
        return partial(
            DelayModel.recalled,
            key=key,
            answers=[(one.message_id, one.outcome, one.due_ms) for one in answer.messages],
            new_due_ms=new_due_ms,
            begin=self.broker.store.log_begin,
            end=self.broker.store.log_end,
            now_ms=now_ms,
            answered=self._is_answered,
            by_wall=by_wall,
        )

    def _wall_ms(self, broker_ms: int) -> int:
        """What the wall clock shows then, as the broker knows it."""
        return broker_ms - self.broker.time.ahead_of_wall_ms

    async def recall_at_once(self, *recalls: tuple[str, NewTime | None]) -> None:
        """Several at the same time: the answers are true if they are in one order, whichever came first."""
        answers = await asyncio.gather(*(self._answer_of_recall(key, new_time) for key, new_time in recalls))
        problem: InvariantError | None = None
        for order in permutations(answers):
            model = deepcopy(self.model)
            try:
                for tell in order:
                    tell(model)
            except InvariantError as error:
                problem = error
                continue
            self.model = model
            return
        assert problem is not None
        raise problem

    async def recall_while_due(self, key: str, number: int, *, first: bool, new_time: NewTime | None) -> None:
        """In the millisecond in which a message is due: before its delivery, or after it."""
        waiting = sorted(
            due for one in self.model.known(key) for state in one.waits() if (due := self.model.due_ms(state))
        )
        if not waiting:
            return
        seconds = self.broker.time.seconds_until(waiting[number % len(waiting)])
        begun: list[asyncio.Task[None]] = []
        self.clock.call_later(seconds, lambda: begun.append(asyncio.ensure_future(self.recall(key, new_time=new_time))))
        if first:  # timers of the same time run in the order of their making: have the broker make its own anew
            await self.send(1, delay_ms=A_DAY_MS)
        await self.advance(seconds)
        await asyncio.gather(*begun)

    def new_time(self, *, delay_ms: int | None = None, deliver_in_ms: int | None = None) -> NewTime:
        """As a client says it."""
        if deliver_in_ms is None:
            return NewTime(delay_ms=delay_ms)
        return NewTime(deliver_ms=max(0, self._wall_ms(self.broker.time.stamp_ms()) + deliver_in_ms))

    # ------------------------------------------------------------------------------------------ time and disk

    async def advance(self, seconds: float) -> None:
        """While the disk rejects, a minute at the most: every ten seconds all of it is tried again."""
        await self.clock.advance(min(seconds, 60.0) if self.is_rejecting else seconds)
        await self.clock.settle()

    async def wall_jumps(self, days: int) -> None:
        self.clock.set_wall_ms(self.clock.wall_ms() + days * A_DAY_MS)
        time = self.broker.time
        self.model.clocks_differ(time.ahead_of_wall_ms, time.now_ms())

    async def reject(self, number: int) -> None:
        """The disk takes nothing more for the log, the index and the timer, until `accept`; with ENOSPC it is full."""
        self._rejecting_since = self.broker.time.now_ms()
        if number == errno.ENOSPC:
            self.broker.store.gate.measured(FULL)

        def rejected(call: str, path: Path) -> None:
            if call in {"pwrite", "allocate"} and LAYOUT.consume_queues not in path.parents:
                raise OSError(number, "rejected by the test", str(path))

        self.disk.before = rejected

    @property
    def is_rejecting(self) -> bool:
        return self._rejecting_since is not None

    async def accept(self) -> None:
        if self._rejecting_since is not None:
            self.disk.before = lambda _call, _path: None
            await self._clean(0.0)  # measures the disk anew
            self.model.rejected(self._rejecting_since, self.broker.time.now_ms())
            self._rejecting_since = None

    async def checkpoint(self) -> None:
        await self.broker.store.checkpoint()

    async def clean(self) -> None:
        """The oldest files of the log go, all but the newest."""
        await self._clean(FORCED)

    async def _clean(self, used_share: float) -> None:
        self.model.may_be_carried()
        self.disk.used_share = used_share
        cleaning = asyncio.ensure_future(self.broker.retention.round())
        await self.clock.settle()
        while not cleaning.done():
            await self.clock.advance(0.05)
            await self._see()  # what is delivered may be gone a moment later
        await cleaning
        self.disk.used_share = 0.0
        finished = self._is_answered and self._rejecting_since is None
        store = self.broker.store
        self.model.carried(store.log_begin, store.log_end, finished=finished)

    async def damage_timer(self, seed: int, *, everything: bool = False) -> None:
        """A byte of the timer's files is another one; or one in each block of its runs."""
        damage_files(self.disk, LAYOUT.timer, SeededRng(seed), everything=everything)

    # ------------------------------------------------------------------------------------- stops and crashes

    async def restart(
        self, *, clean: bool, lost: Iterable[Path] = (), damage: int | None = None, table: str | None = None
    ) -> None:
        """It stops, or is killed; then some of its files are gone or damaged, or the levels are others."""
        await self.accept()
        await self._stop(clean=clean)
        if not clean:
            self.model.cut(self.broker.store.log_end)
        for path in lost:
            self.disk.remove_tree(path)
        if damage is not None:
            await self.damage_timer(damage)
        if table and self.model.follows_in_order(DelayLevels.parse(table)):
            self.model.counts["another table of levels"] += table != self._table
            self._table = table
        await self._start()

    async def lose_power(self, seed: int) -> None:
        await self.accept()
        certain_end = self.broker.store.flusher.durable_end
        await self._stop(clean=False)
        self.disk.crash(SeededRng(seed))
        self.model.cut(certain_end)
        await self._start()

    async def cut(
        self, work: Callable[[], Coroutine[Any, Any, None]], calls: int, *, power: bool, seed: int, again: bool
    ) -> None:
        """The broker dies with its process or its machine at a call of the disk in the middle of this work.

        `again`: and once more while it starts after that.
        """
        await self.accept()
        self._is_answered = False
        self._fork = Fork(self.disk, calls, lambda: self._certain_end(power=power))
        await work()
        await self.clock.settle()
        await self._die(self._fork, power=power, seed=seed)
        self._is_answered = True
        if again:
            self._fork = Fork(self.disk, 1 + seed % 30, lambda: 0)
            await self._start(look=False)
            await self._die(self._fork, power=power, seed=seed)
        await self._start()

    async def _die(self, fork: Fork, *, power: bool, seed: int) -> None:
        await self._stop(clean=False)
        self._fork = None
        self.disk, certain_end = fork.end()
        self.disk.kill()
        if power:
            self.disk.crash(SeededRng(seed))
        self.model.cut(certain_end)

    def _certain_end(self, *, power: bool) -> int:
        return self.broker.store.flusher.durable_end if power else self.broker.store.log_end

    async def stop(self) -> None:
        """As by SIGTERM; to be cut."""
        await self._stop(clean=True)

    async def _stop(self, *, clean: bool) -> None:
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        self._jobs = []
        if clean:
            await self.broker.close()
        else:
            self.disk.kill()

    async def _start(self, *, look: bool = True) -> None:
        broker = self.broker = Broker(self.disk, self.clock, broker_options(self._table), self._store)
        await broker.open()
        if look:
            await self._look_at_earlier_deliveries()
            self.model.started(DelayLevels.parse(self._table), broker.time.now_ms())
            self.model.clocks_differ(broker.time.ahead_of_wall_ms, broker.time.now_ms())
        self._count_anew(broker.delay.timer)
        jobs = (broker.store.run, broker.delay.run, broker.delay.keep_index)
        self._jobs = [asyncio.ensure_future(job()) for job in jobs]

    async def _look_at_earlier_deliveries(self) -> None:
        """What stands in the topic before this broker delivers anything: the clocks and levels of before count."""
        present: dict[int, list[Arrival]] = defaultdict(list)
        self._seen_to.clear()
        for arrival in await self._new_arrivals():
            present[arrival.number].append(arrival)
        for arrival in self.model.found_again(present, self.broker.store.log_begin):
            self.model.arrived(arrival)

    def _count_anew(self, timer: TimerQueue) -> None:
        begin_anew = timer.begin_anew

        async def counted(error: DamagedRunError) -> None:
            self.model.counts["timer built anew"] += 1
            await begin_anew(error)

        timer.begin_anew = counted  # type: ignore[method-assign]

    # --------------------------------------------------------------------------------------------------- looks

    async def step(self, work: Coroutine[Any, Any, None]) -> None:
        """Something happens; then everything is as it should be."""
        await work
        await self._look()

    async def _look(self) -> None:
        await self.clock.settle()
        for job in self._jobs:
            if job.done():
                job.result()
        await self._see()
        if self._rejecting_since is not None:
            self.model.rejected(self._rejecting_since, self.broker.time.now_ms())
        self.model.look(
            self.broker.time.now_ms(),
            (
                (queue.level, queue.waiting, queue.next_due_ms if queue.waiting else None)
                for queue in self.broker.delay.queues
            ),
        )

    async def _see(self) -> None:
        """A consumer gets what is new, as long as the broker lives."""
        if self._fork is None or not self._fork.is_taken:
            for arrival in await self._new_arrivals():
                self.model.arrived(arrival)

    async def _new_arrivals(self) -> list[Arrival]:
        found: list[Record] = []
        for queue_id in range(QUEUES):
            queue = self.broker.store.queue(TOPIC, queue_id)
            at = max(self._seen_to[queue_id], queue.min_offset if queue else 0)
            while queue is not None and at < queue.max_offset:
                records, scanned = await self.broker.store.reader.read_queue(queue, at, 32)
                if not scanned:
                    break
                found += records
                at += scanned
            self._seen_to[queue_id] = at
        return [
            Arrival(int(one.body[:6]), one.log_offset, one.log_offset + one.size, one.store_timestamp_ms)
            for one in sorted(found, key=lambda record: record.log_offset)
        ]

    async def finish(self) -> None:
        """All faults are over: in the end everything has come, and nothing comes after that."""
        await self.step(self.accept())
        await self.step(self.advance(20.0))
        wait_s = self.broker.time.seconds_until(self.model.newest_due_ms)
        await self.step(self.advance(wait_s + 1.0))
        for clean in (True, False):
            await self.step(self.restart(clean=clean))
            assert [queue.level for queue in self.broker.delay.queues if queue.waiting] == []
        await self.step(self.advance(41 * A_DAY_MS / 1_000))
        assert [queue.level for queue in self.broker.delay.queues if queue.wake_ms is not None] == []

    async def close(self) -> None:
        await self._stop(clean=False)


def _due_ms(new_time: NewTime, now_ms: int) -> int:
    if new_time.delay_ms is not None:
        return now_ms + new_time.delay_ms
    return max(now_ms, new_time.deliver_ms or 0)
