"""What whoever waits sees: a live line on a terminal, plain lines elsewhere, and a line that stays for each table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from osenv import Clock, RealClock

PLAIN_INTERVAL_S = 2.0


class Progress:
    """A context manager. `show` may be called as often as one likes."""

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self._console = console
        self._clock = clock or RealClock()
        self._status: Status | None = console.status("") if console.is_terminal else None
        self._printed_at = float("-inf")
        self._printed = ""

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._console.print(sentence, highlight=False, soft_wrap=True)

    def show(self, text: str) -> None:
        """What is being done now; without a terminal a line every two seconds, if something is new."""
        now = self._clock.monotonic()
        if self._status is not None:
            self._status.update(text)
        elif now - self._printed_at >= PLAIN_INTERVAL_S and text != self._printed:
            self._printed_at, self._printed = now, text
            self.say(text)

    @contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Show `what` while the block runs; how long it took stays."""
        self.show(what)
        begin = self._clock.monotonic()
        yield
        self.say(f"{what}: {self._clock.monotonic() - begin:.1f} s")

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
