"""Time as a port: the wall clock for dates, the monotonic clock for durations, and timers.

An event loop's own timers count whole milliseconds, and may be one early. Linux has timers that are files, which become
readable at their time: a timerfd.

Invariant: nothing outside this package reads a clock or starts a timer of the event loop directly, so that a test that
holds the clock holds all of time.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Protocol

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK, _TFD_CLOEXEC = os.O_NONBLOCK if hasattr(os, "O_NONBLOCK") else 0, getattr(os, "O_CLOEXEC", 0)
_NS_IN_S = 1_000_000_000

REST_MIN_S = 0.001  # a shorter wait may be none at all for a timer, and then a loop
WALL_LOOK_S = 5.0  # no event reports a step of the wall clock, so a timer polls for it

POLL_INTERVAL_S = 0.001
YIELDS_FIRST = 20  # what needs the event loop only is there after a few turns of it


class Alarm(Protocol):
    """Calls back once for each time that it is set; not at all when it is set again, or cancelled, before."""

    def set(self, seconds: float) -> None:
        """Call back after about `seconds` (1 ms early is possible)."""

    def cancel(self) -> None:
        """Do not call back any more."""

    def close(self) -> None:
        """Cancel, and give back what it holds of the operating system."""


class LoopAlarm:
    """An alarm by the timers of an event loop."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], Any], callback: Callable[[], None]) -> None:
        self._call_later, self._callback = call_later, callback
        self._timer: Any = None

    def set(self, seconds: float) -> None:
        self.cancel()
        self._timer = self._call_later(seconds, self._callback)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    close = cancel


class TimerFileAlarm:
    """An alarm by a timerfd on the running event loop."""

    def __init__(self, callback: Callable[[], None]) -> None:
        """Raises OSError where the machine has none."""
        self._callback = callback
        self._set_time = _libc().timerfd_settime
        self._file = _libc().timerfd_create(_CLOCK_MONOTONIC, _TFD_NONBLOCK | _TFD_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._file, self._ring)

    def set(self, seconds: float) -> None:
        """See Alarm. Raises OSError."""
        nanoseconds = max(1, round(seconds * _NS_IN_S))  # 0 would switch it off
        self._tell(_Specification(0, 0, *divmod(nanoseconds, _NS_IN_S)))

    def cancel(self) -> None:
        self._tell(_Specification())

    def close(self) -> None:
        if self._file >= 0:
            self._loop.remove_reader(self._file)
            os.close(self._file)
            self._file = -1

    def _tell(self, specification: _Specification) -> None:
        if self._file >= 0 and self._set_time(self._file, 0, ctypes.byref(specification), None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime")

    def _ring(self) -> None:
        try:
            os.read(self._file, 8)
        except BlockingIOError:  # set anew since it became readable
            return
        self._callback()


def real_alarm(callback: Callable[[], None]) -> Alarm:
    """The best alarm that this machine has, on the running event loop."""
    if sys.platform == "linux":
        try:
            return TimerFileAlarm(callback)
        except (OSError, AttributeError, NotImplementedError):  # no such call in the C library, or a loop without files
            pass
    return LoopAlarm(asyncio.get_running_loop().call_later, callback)


class _Specification(ctypes.Structure):
    """struct itimerspec: the interval, which stays zero, and the time of the first expiry."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class Timer(Protocol):
    """A callback that has not run yet."""

    def cancel(self) -> None:
        """Forget the callback; harmless when it has run already."""


class Clock(Protocol):
    """What the project may ask of time."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC; may jump in either direction."""

    def wall_us(self) -> int:
        """Microseconds since 1970-01-01 UTC: the same clock with the fraction of the millisecond."""

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


async def until(condition: Callable[[], object], *, within_s: float = 10.0) -> None:
    """Return when `condition()`, or what it returns when awaited, is true.

    Waits in real time; for a clock that a test moves see SimClock.until. Raises TimeoutError after `within_s` seconds.
    """
    deadline = time.monotonic() + within_s
    turns = 0
    while not await is_met(condition):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"the condition did not become true within {within_s:g} s")
        turns += 1
        await asyncio.sleep(0 if turns <= YIELDS_FIRST else POLL_INTERVAL_S)


async def is_met(condition: Callable[[], object]) -> bool:
    """Whether `condition()`, or what it returns when awaited, is true."""
    answer = condition()
    return bool(await answer if inspect.isawaitable(answer) else answer)
