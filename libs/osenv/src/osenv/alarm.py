"""One moment to be woken at, as exactly as the machine can; set anew as often as wanted.

An event loop's own timers count whole milliseconds, and may be one early. Linux has timers that are files, which become
readable at their time: a timerfd.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

_CLOCK_MONOTONIC = 1
_TFD_NONBLOCK, _TFD_CLOEXEC = os.O_NONBLOCK if hasattr(os, "O_NONBLOCK") else 0, getattr(os, "O_CLOEXEC", 0)
_NS_IN_S = 1_000_000_000


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
