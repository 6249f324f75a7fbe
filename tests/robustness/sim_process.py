"""A process of a simulated machine: its clocks, and what it does when it is stopped, goes on or dies.

Invariant: of a process that is stopped no timer rings and no message arrives until it goes on; of a dead one, never.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import TypeVar

from client_tasks import context_of
from replica_network import settle_future

from osenv import SimClock
from osenv.clock import LoopAlarm, Timer

T = TypeVar("T")

NEVER_EARLY_S = 2e-9  # what the rounding of a clock's rate may take away


class SimProcess:
    """One life of one process on the machine `node`; `name` is its own, and no other's."""

    def __init__(self, node: str, name: str, clock: SimClock, skew_ms: int = 0, rate: float = 1.0) -> None:
        self.node, self.name, self.is_alive = node, name, True
        self.clock = NodeClock(self, clock, skew_ms, rate)
        self.stopped_since: float | None = None  # monotonic, of the right clock
        self._real_clock = clock
        self._context: Context = context_of(name)
        self._held: deque[Callable[[], None]] | None = None

    def run(self, call: Callable[[], T]) -> T:
        """As the process itself: what comes of it belongs to it."""
        return self._context.copy().run(call)

    def wake(self, callback: Callable[[], None]) -> None:
        if self._held is not None:
            self._held.append(callback)
        elif self.is_alive:
            self.run(callback)

    @property
    def is_stopped(self) -> bool:
        return self._held is not None

    def stop(self) -> None:
        """As by SIGSTOP."""
        if self._held is None:
            self._held, self.stopped_since = deque(), self._real_clock.monotonic()

    def go_on(self) -> None:
        """As by SIGCONT."""
        held, self._held, self.stopped_since = self._held or (), None, None
        for callback in held:
            self.wake(callback)


class _Timer:
    __slots__ = ("callback", "is_cancelled", "process", "timer")

    def __init__(self, process: SimProcess, callback: Callable[[], None]) -> None:
        self.process, self.callback, self.is_cancelled = process, callback, False
        self.timer: Timer | None = None

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.timer is not None:
            self.timer.cancel()

    def ring(self) -> None:
        self.process.wake(self._run)

    def _run(self) -> None:
        if not self.is_cancelled:
            self.callback()


class NodeClock:
    """The clocks of one machine: the wall clock is wrong, and both run too fast or too slowly."""

    def __init__(self, process: SimProcess, clock: SimClock, skew_ms: int, rate: float) -> None:
        self._process, self._clock, self._skew_ms, self._rate = process, clock, skew_ms, rate
        self._start_ms = clock.wall_ms() - clock.monotonic() * 1_000
        self._watches: list[_Timer] = []

    def wall_us(self) -> int:
        return int((self._start_ms + self._skew_ms + self.monotonic() * 1_000) * 1_000)

    def wall_ms(self) -> int:
        return self.wall_us() // 1_000

    def monotonic(self) -> float:
        return self._clock.monotonic() * self._rate

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _Timer:
        timer = _Timer(self._process, callback)
        timer.timer = self._clock.call_later(max(0.0, seconds) / self._rate + NEVER_EARLY_S, timer.ring)
        return timer

    def watch_wall(self, callback: Callable[[], None]) -> _Timer:
        watch = _Timer(self._process, callback)
        self._watches = [one for one in self._watches if not one.is_cancelled] + [watch]
        return watch

    def step_wall_to(self, skew_ms: int) -> None:
        """Set the wall clock, so that it is wrong by so much."""
        self._skew_ms = skew_ms
        for watch in self._watches:
            watch.ring()

    def alarm(self, callback: Callable[[], None]) -> LoopAlarm:
        return LoopAlarm(self.call_later, callback)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        timer = self.call_later(seconds, lambda: settle_future(woken))
        try:
            await woken
        finally:
            timer.cancel()
