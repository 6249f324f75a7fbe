"""Progress for whoever watches: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

PLAIN_INTERVAL_S = 2.0
SHOWN_MIN_S = 0.05  # less would be printed as 0.0


@dataclass(frozen=True, slots=True)
class Counts:
    """Where the orders are; `next_close_s` is the time to the next expiry, None when none is known."""

    total: int
    placed: int = 0
    paid: int = 0
    closed: int = 0
    next_close_s: float | None = None

    def __str__(self) -> str:
        waiting = max(0, self.placed - self.paid - self.closed)
        text = f"placed {self.placed:,} of {self.total:,}   paid {self.paid:,}   waiting {waiting:,}"
        text += f"   closed {self.closed:,}"
        if not waiting or self.next_close_s is None:
            return text
        if self.next_close_s >= SHOWN_MIN_S:
            return f"{text}   next closing in {self.next_close_s:.1f} s"
        return f"{text}   closing"


class Progress:
    """A context manager. `show` may be called as often as one likes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = console.status("") if console.is_terminal else None
        self._printed_at = float("-inf")
        self._printed = ""

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._console.print(sentence, highlight=False)

    def show(self, counts: Counts) -> None:
        """The state of things now; without a terminal a line every two seconds, if something is new."""
        text = str(counts)
        if self._status is not None:
            self._status.update(text)
        elif time.monotonic() - self._printed_at >= PLAIN_INTERVAL_S and text != self._printed:
            self._printed_at, self._printed = time.monotonic(), text
            self.say(text)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()
