"""A clock that only moves when it is told to: thirty minutes pass in the time that their work takes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextlib import suppress

from osenv.clock import LoopAlarm, is_met, until

# Rounds that the event loop gets at most to finish what a timer started, before the clock moves on to the next one.
SETTLE_ROUNDS = 500

# In real time, for what the event loop cannot see. Work in threads ends within the first; a listener that waits for
# this clock costs it at each step. The second is for threads of which the clock has not been told.
THREADS_PATIENCE_S = 0.02
LAST_PATIENCE_S = 5.0


class _SimTimer:
    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], None]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class SimClock:
    """Implements `osenv.Clock`. No real timer is ever started.

    Invariants: monotonic time never goes back; timers run in the order of their due times, and in the order of their
    creation where those are equal; a callback sees exactly its due time.
    """

    def __init__(self, wall_ms: int = 1_700_000_000_000, *, settle_rounds: int = SETTLE_ROUNDS) -> None:
        """`settle_rounds`: after each timer the event loop gets at most so many to finish what the timer started."""
        self._wall_offset_ms = wall_ms
        self._settle_rounds = settle_rounds
        self._now_ns = 0  # whole nanoseconds: sums of steps are exact
        self._timers: list[tuple[int, int, _SimTimer]] = []  # due when, in nanoseconds; its number
        self._numbers = itertools.count()
        self._watches: list[_SimTimer] = []
        self._at_work: list[Callable[[], object]] = []

    def wall_ms(self) -> int:
        return self._wall_offset_ms + self._now_ns // 1_000_000

    def wall_us(self) -> int:
        return self._wall_offset_ms * 1_000 + self._now_ns // 1_000

    def monotonic(self) -> float:
        return self._now_ns / 1e9

    def call_later(self, seconds: float, callback: Callable[[], None]) -> _SimTimer:
        timer = _SimTimer(callback)
        heapq.heappush(self._timers, (self._now_ns + max(0, _ns(seconds)), next(self._numbers), timer))
        return timer

    def watch_wall(self, callback: Callable[[], None]) -> _SimTimer:
        watch = _SimTimer(callback)
        self._watches.append(watch)
        return watch

    def alarm(self, callback: Callable[[], None]) -> LoopAlarm:
        return LoopAlarm(self.call_later, callback)

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self.call_later(seconds, wake)
        try:
            await woken
        finally:
            timer.cancel()

    def set_wall_ms(self, wall_ms: int) -> None:
        """Step the wall clock, as an administrator or a bad NTP server would; monotonic time is not touched."""
        self._wall_offset_ms += wall_ms - self.wall_ms()
        self._watches = [watch for watch in self._watches if not watch.cancelled]
        for watch in self._watches:
            watch.callback()

    @property
    def timers(self) -> int:
        """How many timers wait."""
        return sum(not timer.cancelled for _, _, timer in self._timers)

    async def advance(self, seconds: float) -> None:
        """Let `seconds` pass: each timer that comes due runs at its own time, then the event loop settles.

        Threads are not waited for: what a thread does goes on in real time. See `until`.
        """
        if seconds < 0:
            raise ValueError(f"time does not go back, not even by {-seconds} s")
        end_ns = self._now_ns + _ns(seconds)
        await self.settle()
        while self._timers and self._timers[0][0] <= end_ns:
            due_ns, _, timer = heapq.heappop(self._timers)
            if timer.cancelled:
                continue
            self._now_ns = max(self._now_ns, due_ns)
            timer.callback()
            await self.settle()
        self._now_ns = max(self._now_ns, end_ns)  # a task may have advanced further meanwhile

    async def settle(self) -> None:
        """Let everything run that can run now, with as many rounds as after a timer."""
        await settle(self._settle_rounds)

    async def until(self, condition: Callable[[], object], *, within_s: float = 600.0, step_s: float = 0.5) -> None:
        """Let time pass in steps of `step_s` seconds until `condition()`, or what it returns when awaited, is true.

        Time stands still while work goes on in threads of which the clock has been told (`wait_for`; an embedded broker
        tells of its clients). Raises TimeoutError after `within_s` seconds of this clock, and 5 s of real time for
        threads of which it has not been told.
        """
        end_ns = self._now_ns + _ns(within_s)
        while True:
            await self._let_threads_work()
            if await is_met(condition):
                return
            if self._now_ns >= end_ns:
                break
            await self.advance(step_s)
        try:
            await until(condition, within_s=LAST_PATIENCE_S)
        except TimeoutError:
            raise TimeoutError(
                f"the condition did not become true within {within_s:g} s of the simulated clock"
            ) from None

    def wait_for(self, is_at_work: Callable[[], object]) -> None:
        """Have `until` wait while `is_at_work()` is true, before time moves on."""
        self._at_work.append(is_at_work)

    def wait_no_longer_for(self, is_at_work: Callable[[], object]) -> None:
        """Take back what `wait_for` was told; harmless when it was not."""
        if is_at_work in self._at_work:
            self._at_work.remove(is_at_work)

    async def _let_threads_work(self) -> None:
        await settle()
        if not any(is_at_work() for is_at_work in self._at_work):
            return

        async def is_over() -> bool:
            await settle()
            return not any(is_at_work() for is_at_work in self._at_work)

        with suppress(TimeoutError):
            await until(is_over, within_s=THREADS_PATIENCE_S)


def _ns(seconds: float) -> int:
    """At least 1 unless `seconds` is 0: a sleep for the last 7e-15 s of a wait must move the clock past its end."""
    return round(seconds * 1e9) or int(seconds > 0)


async def settle(rounds: int = SETTLE_ROUNDS) -> None:
    """Let every task run that can run now, and whatever these set going, for at most `rounds` of the event loop.

    asyncio's own loops show when nothing is left to run; others get all the rounds.
    """
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    for _ in range(rounds):
        await asyncio.sleep(0)
        if ready is not None and not ready:
            return
