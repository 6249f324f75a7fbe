"""The work that is measured, on any queue: in a process of its own, which writes a line of JSON for each event.

    {"event": "idle"}                                   connected; nothing was sent
    {"event": "next", "figure": "produce_1"}            begins in SETTLE_S
    {"event": "begin", "figure": "produce_1"}
    {"event": "end", "figure": "produce_1", "messages": 1000, "metrics": {"msg_per_s": 500.0}}

The process that reads them measures processor time, memory and fsyncs between `begin` and `end` (meter.py), because a
client in Java is measured in the same way.

Invariants: every message is acknowledged; rates count acknowledged messages alone; end-to-end latency and lateness
count from the time at which a message was to be sent; a figure whose messages do not all arrive is no figure.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from hourglass_loadtest.measure.clients import MeasureError, latency_metrics, start_on_time
from hourglass_loadtest.peers.peer import CALLS, Connect, Connection

BODY_BYTES = 100
IN_FLIGHT = 64
RATE_PER_S = 500
DELAYED_PER_S, DELAY_MS = 100, 1_000
SETTLE_S = 0.4
WARM_UP_S = 0.5
LEAD_S = 0.1
ARRIVAL_TIMEOUT_S = 60.0
BACKLOG, PROBE, PACED, DELAYED = b"b", b"p", b"e", b"d"
KIND_BYTES, NUMBER_BYTES = 1, 8
_PADDING = os.urandom(BODY_BYTES - KIND_BYTES - NUMBER_BYTES)


def body_of(kind: bytes, number: int) -> bytes:
    """A body that says what it is."""
    return kind + number.to_bytes(NUMBER_BYTES, "big") + _PADDING


class Arrivals:
    """Takes what is delivered; when it came, on perf_counter.

    A message of the backlog that comes a second time counts once no more than all of them have come: `backlog_left`
    is exact only where the queue repeats none, and `repeated` has those of the other kinds.
    """

    def __init__(self) -> None:
        self.backlog_left = 0
        self.first_batch = 0
        self.first_at = self.last_at = 0.0
        self.at: dict[tuple[bytes, int], float] = {}
        self.repeated = 0
        self._changed = asyncio.Event()

    def __call__(self, bodies: Sequence[bytes]) -> None:
        now = time.perf_counter()
        backlog = sum(body[:KIND_BYTES] == BACKLOG for body in bodies)
        if backlog:
            self.backlog_left -= backlog
            self.last_at = now
            if not self.first_batch:
                self.first_at, self.first_batch = now, backlog
        if backlog < len(bodies):
            self._note(bodies, now)
        self._changed.set()

    def _note(self, bodies: Iterable[bytes], now: float) -> None:
        for body in bodies:
            key = body[:KIND_BYTES], int.from_bytes(body[KIND_BYTES : KIND_BYTES + NUMBER_BYTES], "big")
            if key[0] == BACKLOG:
                continue
            if key in self.at:
                self.repeated += 1
            else:
                self.at[key] = now

    async def wait(self, done: Callable[[], bool], what: str) -> None:
        """Return when `done` is true. Raises MeasureError after ARRIVAL_TIMEOUT_S."""
        try:
            async with asyncio.timeout(ARRIVAL_TIMEOUT_S):
                while not done():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise MeasureError(f"{what} did not arrive within {ARRIVAL_TIMEOUT_S:.0f} s") from None

    async def wait_for(self, kind: bytes, count: int) -> list[float]:
        """When each of them came. Raises MeasureError, also when one came twice."""
        keys = [(kind, number) for number in range(count)]
        await self.wait(lambda: all(key in self.at for key in reversed(keys)), f"{count:,} messages")
        if self.repeated:
            raise MeasureError(f"{self.repeated:,} messages arrived twice although nothing failed")
        return [self.at[key] for key in keys]


def _event(event: str, **more: Any) -> None:
    print(json.dumps({"event": event, **more}), flush=True)


async def _figure(name: str, work: Callable[[], Awaitable[tuple[int, dict[str, float]]]]) -> None:
    _event("next", figure=name)
    await asyncio.sleep(SETTLE_S)
    _event("begin", figure=name)
    messages, metrics = await work()
    _event("end", figure=name, messages=messages, metrics=metrics)


async def run_load(connect: Connect, address: str, *, window: str, delays: bool, seconds: float) -> None:
    """All figures, about `seconds` each. Raises MeasureError, and what the connection raises."""
    producer = await connect(address)
    _event("idle")
    await asyncio.sleep(SETTLE_S)
    load = _Load(producer, window, seconds)
    await load.produce_calls(1, WARM_UP_S)
    await _figure("produce_1", lambda: load.produce_calls(1, seconds))
    await load.produce_window(WARM_UP_S)
    await _figure("produce_64", lambda: load.produce_window(seconds))
    consumer = await connect(address)
    await _figure("drain", lambda: load.drain(consumer))
    await _figure("end_to_end", load.end_to_end)
    if delays:
        await _figure("delay", load.delay)
    await load.stop()
    await consumer.close()
    await producer.close()


class _Load:
    def __init__(self, producer: Connection, window: str, seconds: float) -> None:
        self._producer = producer
        self._window = window
        self._seconds = seconds
        self._stored = 0
        self._arrivals = Arrivals()
        self._consuming: asyncio.Task[None] | None = None

    async def produce_calls(self, in_flight: int, seconds: float) -> tuple[int, dict[str, float]]:
        latencies_s: list[float] = []
        body, begin = body_of(BACKLOG, 0), time.perf_counter()

        async def some() -> None:
            while (before := time.perf_counter()) < begin + seconds:
                await self._producer.produce(body)
                latencies_s.append(time.perf_counter() - before)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(in_flight):
                tasks.create_task(some())
        return self._produced(latencies_s, len(latencies_s), begin)

    async def produce_window(self, seconds: float) -> tuple[int, dict[str, float]]:
        if self._window == CALLS:
            return await self.produce_calls(IN_FLIGHT, seconds)
        latencies_s: list[float] = []
        bodies, begin = [body_of(BACKLOG, 0)] * IN_FLIGHT, time.perf_counter()
        while (before := time.perf_counter()) < begin + seconds:
            await self._producer.produce_together(bodies)
            latencies_s.append(time.perf_counter() - before)
        return self._produced(latencies_s, len(latencies_s) * IN_FLIGHT, begin)

    def _produced(self, latencies_s: Sequence[float], messages: int, begin: float) -> tuple[int, dict[str, float]]:
        self._stored += messages
        return messages, {"msg_per_s": messages / (time.perf_counter() - begin)} | latency_metrics(latencies_s)

    async def drain(self, consumer: Connection) -> tuple[int, dict[str, float]]:
        """From the first delivery to the last one, so that joining a group is no part of it."""
        arrivals = self._arrivals
        arrivals.backlog_left = self._stored
        self._consuming = asyncio.create_task(consumer.consume(arrivals))
        await self._unless_ended(arrivals.wait(lambda: arrivals.backlog_left <= 0, f"{self._stored:,} messages"))
        if (seconds := arrivals.last_at - arrivals.first_at) <= 0:
            raise MeasureError(f"a backlog of {self._stored:,} came at once; produce for longer")
        return self._stored, {"msg_per_s": (self._stored - arrivals.first_batch) / seconds}

    async def end_to_end(self) -> tuple[int, dict[str, float]]:
        count, warm_up = round(self._seconds * RATE_PER_S), round(WARM_UP_S * RATE_PER_S)
        intended, _ = await self._paced(PROBE, warm_up, RATE_PER_S, self._producer.produce)
        await self._unless_ended(self._arrivals.wait_for(PROBE, warm_up))
        intended, _ = await self._paced(PACED, count, RATE_PER_S, self._producer.produce)
        at = await self._unless_ended(self._arrivals.wait_for(PACED, count))
        return count + warm_up, latency_metrics([one - due for one, due in zip(at, intended, strict=True)])

    async def delay(self) -> tuple[int, dict[str, float]]:
        async def produce(body: bytes) -> None:
            await self._producer.produce_delayed(body, DELAY_MS)

        count = max(20, round(self._seconds * DELAYED_PER_S))
        intended, called = await self._paced(DELAYED, count, DELAYED_PER_S, produce)
        at = await self._unless_ended(self._arrivals.wait_for(DELAYED, count))
        late_s = [one - due - DELAY_MS / 1000 for one, due in zip(at, intended, strict=True)]
        early = sum(one < call + DELAY_MS / 1000 for one, call in zip(at, called, strict=True))
        return count, latency_metrics(late_s) | {"early": float(early)}

    async def stop(self) -> None:
        if self._consuming is not None:
            self._consuming.cancel()
            await asyncio.wait({self._consuming})

    async def _paced(
        self, kind: bytes, count: int, per_s: int, produce: Callable[[bytes], Awaitable[None]]
    ) -> tuple[list[float], list[float]]:
        """When each was to be sent, and when it was."""
        begin, called = time.perf_counter() + LEAD_S, [0.0] * count
        intended = [begin + number / per_s for number in range(count)]

        async def one(number: int) -> None:
            called[number] = time.perf_counter()
            await produce(body_of(kind, number))

        await start_on_time(intended, one)
        return intended, called

    async def _unless_ended(self, waiting: Awaitable[Any]) -> Any:
        """What `waiting` gives; the error of the consumer when it ends before."""
        consuming = self._consuming
        if consuming is None:
            raise AssertionError("the drain starts the consumer")
        task = asyncio.ensure_future(waiting)
        await asyncio.wait({task, consuming}, return_when=asyncio.FIRST_COMPLETED)
        if consuming.done():
            task.cancel()
            consuming.result()
            raise MeasureError("the consumer ended by itself")
        return task.result()
