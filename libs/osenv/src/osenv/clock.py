"""Time as a port: the wall clock for dates, the monotonic clock for durations, and timers.

Invariant: nothing outside this package reads a clock or starts a timer of the event loop directly, so that a test that
holds the clock holds all of time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

from osenv.alarm import Alarm, real_alarm

REST_MIN_S = 0.001  # a shorter wait may be none at all for a timer, and then a loop
WALL_LOOK_S = 5.0  # nobody tells a process that the wall clock was stepped: who has to know looks so often


class Timer(Protocol):
    """A callback that has not run yet."""

    def cancel(self) -> None:
        """Forget the callback; harmless when it has run already."""


class Clock(Protocol):
    """What the project may ask of time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump in either direction."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC: the same clock, for who needs the fraction of the millisecond."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment; never goes back."""

    async def sleep(self, seconds: float) -> None:
        """Return after at least `seconds` of monotonic time."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Run `callback` on the event loop after about `seconds` of monotonic time (1 ms early is possible)."""

    def watch_wall(self, callback: Callable[[], None]) -> Timer:
        """Call back after each step of the wall clock, within `WALL_LOOK_S`; perhaps more often. On the event loop."""

    def alarm(self, callback: Callable[[], None]) -> Alarm:
        """For what has to be exact: an alarm that is set again and again, and closed in the end."""


class RealClock:
    """The operating system's clocks and the running event loop's timers."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def wall_us(self) -> int:
        return time.time_ns() // 1_000

    monotonic = staticmethod(time.monotonic)  # asked several times for each message: no call around the call

    async def sleep(self, seconds: float) -> None:
        # An event loop may fire up to its own resolution (1 ms) early; callers of this port never see that.
        due = time.monotonic() + seconds
        await asyncio.sleep(seconds)
        while (rest := due - time.monotonic()) > 0:  # noqa: ASYNC110 - time is awaited here, not a condition
            await asyncio.sleep(rest)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(seconds, callback)

    def watch_wall(self, callback: Callable[[], None]) -> Timer:
        return _WallWatch(callback)

    def alarm(self, callback: Callable[[], None]) -> Alarm:
        return real_alarm(callback)


class _WallWatch:
    """Calls back every `WALL_LOOK_S`, until it is cancelled."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback
        self._timer = asyncio.get_running_loop().call_later(WALL_LOOK_S, self._look)

    def cancel(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(WALL_LOOK_S, self._look)
        self._callback()


def local_hour(epoch_ms: int) -> int:
    """The hour of the day, 0 to 23, in the machine's time zone at this time (ms since 1970-01-01 UTC)."""
    return time.localtime(epoch_ms // 1000).tm_hour


@asynccontextmanager
async def timeout(clock: Clock, seconds: float) -> AsyncIterator[None]:
    """Cancel the body after `seconds` of `clock` and raise TimeoutError, as `asyncio.timeout` does for real time."""
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("osenv.clock.timeout needs a running task")
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    timer = clock.call_later(max(0.0, seconds), expire)
    cancelled_before = task.cancelling()
    try:
        yield
    except BaseException as error:
        # Only our own cancellation becomes a TimeoutError; one from outside stays what it is, and so does another error
        # that the body made of ours. In every case our request to cancel is taken back.
        own = expired and task.uncancel() <= cancelled_before
        if own and isinstance(error, asyncio.CancelledError):
            raise TimeoutError(f"not done within {seconds:.3f} s") from None
        raise
    else:
        if expired:  # fired in the very step in which the body finished: the result is there, keep it
            task.uncancel()
    finally:
        timer.cancel()


async def rest(clock: Clock, event: asyncio.Event, seconds: float) -> None:
    """Return at the event, or after so many seconds; then the event is set, too."""
    timer = clock.call_later(max(REST_MIN_S, seconds), event.set)
    try:
        await event.wait()
    finally:
        timer.cancel()
