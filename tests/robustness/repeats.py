"""Sends whose answer is lost: the connection or the broker dies between append and acknowledgement, and the client asks
the same broker again (figure G17).

One run is the production client and the production broker in one process, on a simulated disk and clock: a handful of
messages, sent together and one by one, and one to four accidents. Then every message that was acknowledged stands in
its queue once, at the place that its sender was told; no other message stands there twice; messages for a queue that
the sender chose are in the order in which they were sent.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from simulation import run_simulation
from sweep import Outcome

from mq_broker.core.topics import TopicConfig
from mq_broker.embedded import EmbeddedBroker
from mq_broker.processor.producing import BatchOutcome
from mq_broker.store.message_store import FlushDiskType
from mq_broker.testing import read_all
from mqclient import Message, MessageQueue, MQClientError, Producer, SendResult
from osenv import Rng, SeededRng, SimClock
from osenv.sim_clock import settle

RUNS = 100  # of one seed of the sweep
TOPIC, QUEUES = "repeats", 2
BURST_MAX = 6
ACCIDENTS_MAX = 4
BODY_BYTES_MAX = 400
LOG_FILE_BYTES = 64 * 1024  # a simulated disk costs by the size of its files
STEP_S = 0.05
STEPS_MAX = 200  # of simulated time: far more than a send's 3 s


class Accident(Enum):
    """What happens after the append and before the answer."""

    CONNECTION_LOST = "the connection breaks"
    KILLED_BEFORE_SYNC = "the broker is killed before the bytes are on disk"
    KILLED_AFTER_SYNC = "the broker is killed when the bytes are on disk"
    POWER_LOST_BEFORE_SYNC = "the power is cut before the bytes are on disk"
    POWER_LOST_AFTER_SYNC = "the power is cut when the bytes are on disk"

    @property
    def after_sync(self) -> bool:
        return self in {Accident.KILLED_AFTER_SYNC, Accident.POWER_LOST_AFTER_SYNC}


@dataclass(slots=True)
class _Sent:
    """One message, and what its sender heard of it."""

    body: bytes
    chosen_queue: int | None
    result: SendResult | None = None
    error: MQClientError | None = None


@dataclass
class RepeatRun:
    """One run. Everything in it follows from the seed."""

    seed: int
    sent: list[_Sent] = field(default_factory=list)
    happened: Counter[Accident] = field(default_factory=Counter)
    _frames: int = 0

    def __post_init__(self) -> None:
        self._rng: Rng = SeededRng(self.seed)
        # Under asynchronous flush a power cut loses what was acknowledged; that is no accident of this kind.
        accidents = list(Accident) if self._rng.randrange(0, 2) else list(Accident)[:3]
        flush = FlushDiskType.SYNC_FLUSH if len(accidents) > 3 else FlushDiskType.ASYNC_FLUSH
        self._broker = EmbeddedBroker(
            f"repeats-{self.seed}",
            clock=SimClock(),
            flush_disk_type=flush,
            commit_log_file_bytes=LOG_FILE_BYTES,
            seed=self.seed,
        )
        frames = [self._rng.randrange(0, 8) for _ in range(self._rng.randrange(1, ACCIDENTS_MAX + 1))]
        self._plan = {frame: accidents[self._rng.randrange(0, len(accidents))] for frame in frames}

    async def run(self) -> list[str]:
        """The sentences about what went wrong."""
        await self._start()
        await self._broker.broker.topic_administration.update(TopicConfig(TOPIC, QUEUES, QUEUES))
        try:
            async with Producer("repeats", self._broker.url) as producer:
                sending = asyncio.create_task(self._send_all(producer))
                for _ in range(STEPS_MAX):
                    await settle()
                    if sending.done():
                        break
                    await self._broker.clock.advance(STEP_S)
                else:
                    sending.cancel()
                    return ["the sends do not end"]
                await sending
            return await self._problems()
        finally:
            await self._broker.stop()

    async def _send_all(self, producer: Producer) -> None:
        """Bursts of messages; those for a chosen queue one after the other, as for ordered sends."""
        for _ in range(self._rng.randrange(1, BURST_MAX + 1)):
            burst = [self._message() for _ in range(self._rng.randrange(1, BURST_MAX + 1))]
            chosen = [one for one in burst if one.chosen_queue is not None]
            together = [self._send(producer, one) for one in burst if one.chosen_queue is None]
            await asyncio.gather(self._send_in_turn(producer, chosen), *together)

    def _message(self) -> _Sent:
        body = b"%d:" % len(self.sent) + self._rng.randbytes(self._rng.randrange(0, BODY_BYTES_MAX)).hex().encode()
        queue = self._rng.randrange(0, QUEUES) if self._rng.randrange(0, 3) == 0 else None
        self.sent.append(_Sent(body, queue))
        return self.sent[-1]

    async def _send_in_turn(self, producer: Producer, messages: Sequence[_Sent]) -> None:
        for one in messages:
            await self._send(producer, one)

    async def _send(self, producer: Producer, one: _Sent) -> None:
        queue = None if one.chosen_queue is None else MessageQueue(TOPIC, "broker-a", one.chosen_queue)
        try:
            one.result = await producer.send(Message(TOPIC, one.body), queue=queue)
        except MQClientError as error:
            one.error = error

    # ------------------------------------------------------------------------------------------------ accidents

    async def _start(self) -> None:
        """Start the broker, and watch its frames from the outside."""
        await self._broker.start()
        producing = self._broker.broker.producing
        acknowledge = producing.acknowledge

        async def watched(outcomes: list[BatchOutcome], log_end: int) -> list[BatchOutcome]:
            accident = self._plan.get(self._frames)
            self._frames += 1
            if accident is None:
                return await acknowledge(outcomes, log_end)
            if accident.after_sync:
                await acknowledge(outcomes, log_end)
            self.happened[accident] += 1
            self._accident = asyncio.create_task(self._happen(accident))  # kept, so that it is not collected
            await asyncio.Event().wait()  # for ever: this answer never leaves
            raise AssertionError

        producing.acknowledge = watched  # type: ignore[method-assign]

    async def _happen(self, accident: Accident) -> None:
        broker = self._broker
        if accident is Accident.CONNECTION_LOST:
            broker.break_connections()
        elif "KILLED" in accident.name:
            await broker.kill()
            await self._start()
        else:
            await broker.lose_power()
            await self._start()

    # ------------------------------------------------------------------------------------------------ the truth

    async def _problems(self) -> list[str]:
        stored = {
            (queue_id, record.queue_offset): record.body
            for queue_id in range(QUEUES)
            for record in await read_all(self._broker.broker, TOPIC, queue_id)
        }
        times, known = Counter(stored.values()), {one.body for one in self.sent}
        found = [f"{_name(body)} stands there {count} times" for body, count in times.items() if count > 1]
        found += [f"never sent: {_name(body)}" for body in times if body not in known]
        for one in self.sent:
            if one.result is None:
                found.append(f"{_name(one.body)} was not acknowledged: {one.error}")
                continue
            place = one.result.message_queue.queue_id, one.result.queue_offset
            if stored.get(place) != one.body:
                there = _name(stored[place]) if place in stored else "nothing"
                found.append(f"{_name(one.body)} was acknowledged at queue and offset {place}; there is {there}")
        for queue_id in range(QUEUES):
            wanted = [one.body for one in self.sent if one.chosen_queue == queue_id and one.body in times]
            order = [body for place, body in sorted(stored.items()) if place[0] == queue_id and body in set(wanted)]
            if order != wanted:
                found.append(f"queue {queue_id} has {[_name(body) for body in order]} in this order")
        return found


def _name(body: bytes) -> str:
    return f"message {body.partition(b':')[0].decode()}"


def explore(first_seed: int, runs: int, deadline: float) -> Outcome:
    """Runs with the seeds from `first_seed` on, until `deadline` (of time.monotonic)."""
    counts: Counter[str] = Counter()
    violations: list[str] = []
    executed = 0
    for seed in range(first_seed, first_seed + runs):
        if time.monotonic() >= deadline:
            break
        run = RepeatRun(seed)
        violations += [f"run {seed}: {problem}" for problem in run_simulation(run.run())]
        executed += 1
        counts["messages"] += len(run.sent)
        counts.update({accident.name.lower(): count for accident, count in run.happened.items()})
    return Outcome(executed, tuple(violations), dict(counts))


class RepeatSweep:
    """A seed is `RUNS` runs."""

    name, figure, unit, goal, share = "repeats", "G17", "sends with a lost answer", 10_000, 5

    def run(self, seed: int, deadline: float) -> Outcome:
        return explore((seed - 1) * RUNS + 1, RUNS, deadline)
