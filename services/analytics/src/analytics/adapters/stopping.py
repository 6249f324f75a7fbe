"""SIGTERM and SIGINT, for programs whose main thread waits for Spark."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StoppedError(BaseException):
    """Somebody asked the program to stop; no error, so nobody who handles errors takes it for one."""


@contextmanager
def stopped_by_signals() -> Iterator[None]:
    """Inside, SIGTERM and SIGINT raise StoppedError where the main thread is. Spark's own handler is set aside."""

    def stop(number: int, _frame: FrameType | None) -> None:
        raise StoppedError(signal.Signals(number).name)

    with _handled(stop):
        yield


@contextmanager
def stop_asked() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set, for who looks again and again whether it should go on."""
    asked = threading.Event()
    with _handled(lambda *_: asked.set()):
        yield asked


@contextmanager
def _handled(handler) -> Iterator[None]:  # type: ignore[no-untyped-def]
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
