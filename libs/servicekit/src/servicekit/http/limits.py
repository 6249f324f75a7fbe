"""Overload protection: which requests run at once, which wait, and which are told to come back later.

`RequestCounter` is the limit for each caller, `Admission` the one for all of them together. Both are kept in memory:
each process counts for itself, and forgets at its end.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from enum import Enum

from osenv import Clock

REQUESTS_MAX = 1_000
WAIT_MAX_MS = 60_000
SHARE_OF_THE_OTHER_KIND = 4  # a quarter
WAITING_PER_PLACE = 16
OVERLOAD_PATIENCE_SHARE = 10  # a tenth
# A client that comes back too early makes things worse. The clients that were rejected lately are spread over the time
# in which as many as them are carried out, so that what comes again is about what finds a place.
RECENT_S = 10.0
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2
RETRY_AFTER_MIN_S, RETRY_AFTER_MAX_S = 2, 30


class Kind(Enum):
    """What a request does; the order is that in which they get a place."""

    WRITE = "write"
    READ = "read"


@dataclass(frozen=True, slots=True)
class AdmissionLimit:
    """So many requests in work at once, and so many milliseconds in which a burst may wait. Raises ValueError."""

    requests: int
    wait_ms: int

    def __post_init__(self) -> None:
        if not 1 <= self.requests <= REQUESTS_MAX:
            raise ValueError(f"1 to {REQUESTS_MAX} requests may be in work at once, not {self.requests}")
        if not 1 <= self.wait_ms <= WAIT_MAX_MS:
            raise ValueError(f"a request may wait for 1 to {WAIT_MAX_MS} ms, not {self.wait_ms}")

    @property
    def per_kind(self) -> int:
        """How many of one kind may be in work."""
        return self.requests - self.requests // SHARE_OF_THE_OTHER_KIND

    @property
    def waiting_max(self) -> int:
        """How many of one kind may wait."""
        return self.requests * WAITING_PER_PLACE


DEFAULT_ADMISSION_LIMIT = AdmissionLimit(16, 500)


def parse_admission_limit(text: str) -> AdmissionLimit | None:
    """`16/500` is 16 requests in work and a wait of 500 ms; `off` is None. Raises ValueError."""
    if text == "off":
        return None
    requests, slash, wait_ms = text.partition("/")
    if not slash or not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in (requests, wait_ms)):
        raise ValueError("allowed is requests/milliseconds, such as 16/500, or off")
    return AdmissionLimit(int(requests), int(wait_ms))


class OverloadedError(Exception):
    """There is no place, and no use in waiting longer; it may be tried again after `retry_after_s` seconds."""

    def __init__(self, complaint: str, retry_after_s: int) -> None:
        super().__init__(complaint)
        self.retry_after_s = retry_after_s


@dataclass(slots=True)
class _Line:
    """Those of one kind. `standing_since` is when a request first had to wait since there was a place."""

    kind: Kind
    in_work: int = 0
    waiting: dict[asyncio.Future[None], None] = field(default_factory=dict)  # in the order in which they came
    standing_since: float | None = None


class _Recent:
    """How many were admitted and how many rejected lately: each counts 1, and fades to a third in RECENT_S seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = clock.monotonic()
        self._admitted = self._rejected = 0.0

    def admit(self) -> None:
        self._fade()
        self._admitted += 1

    def reject(self) -> None:
        self._fade()
        self._rejected += 1

    def catching_up_s(self) -> float:
        """How long it takes to admit as many as were rejected, at the rate of lately."""
        return RECENT_S * self._rejected / max(1.0, self._admitted)

    def _fade(self) -> None:
        now = self._clock.monotonic()
        rest, self._at = math.exp((self._at - now) / RECENT_S), now
        self._admitted *= rest
        self._rejected *= rest


class Ticket:
    """A place; `leave` gives it back, and is harmless afterwards."""

    __slots__ = ("_admission", "_line")

    def __init__(self, admission: Admission, line: _Line) -> None:
        self._admission: Admission | None = admission
        self._line = line

    def leave(self) -> None:
        admission, self._admission = self._admission, None
        if admission is not None:
            admission._leave(self._line)


class Admission:
    """The places of one process, on its event loop.

    A service that begins everything that arrives finishes nothing in time once more arrives than it can do. So a
    bounded number of requests is in work; the next ones wait in line, and how long depends on the line. One that was
    empty a moment ago is a burst, which is waited out. One that has stood for as long as a burst may wait is an
    overload: waiting only makes every request late, and the patience becomes a tenth (after CoDel, RFC 8289: what
    matters is how long the line stands, not how long it is). The line then holds just enough for the places to be taken
    again at once.

    Reads and writes each leave a quarter of the places to the other kind: writes that hang on a dead queue do not stop
    reading, and reading much does not stop writes. Where both could go on, writes go first.

    Invariants: at most `requests` are in work, of one kind at most `per_kind`; no request waits while there is a place
    for its kind; first come, first served within a kind; no more than `waiting_max` of a kind wait.
    """

    def __init__(self, limit: AdmissionLimit, clock: Clock) -> None:
        self.limit = limit
        self._clock = clock
        self._lines = {kind: _Line(kind) for kind in Kind}
        self._recent = _Recent(clock)
        self._rejections = 0

    @property
    def in_work(self) -> int:
        """How many requests are in work."""
        return sum(line.in_work for line in self._lines.values())

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return sum(len(line.waiting) for line in self._lines.values())

    async def enter(self, kind: Kind) -> Ticket:
        """A place, at once or after waiting for it. Raises OverloadedError."""
        line = self._lines[kind]
        if not line.waiting and self._has_room(line):
            line.standing_since = None
            line.in_work += 1
            self._recent.admit()
            return Ticket(self, line)
        if len(line.waiting) >= self.limit.waiting_max:
            raise self._rejection(line, f"{len(line.waiting)} {kind.value} requests wait already")
        await self._wait(line)
        self._recent.admit()
        return Ticket(self, line)

    def patience_s(self, kind: Kind) -> float:
        """How long one that comes now would wait at most."""
        wait_s = self.limit.wait_ms / 1000
        return wait_s if self._standing_s(self._lines[kind]) < wait_s else wait_s / OVERLOAD_PATIENCE_SHARE

    async def _wait(self, line: _Line) -> None:
        if line.standing_since is None:
            line.standing_since = self._clock.monotonic()
        patience_s = self.patience_s(line.kind)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.waiting[turn] = None

        def give_up() -> None:
            if not turn.done():
                complaint = f"no place for a {line.kind.value} request became free in {patience_s * 1000:g} ms"
                turn.set_exception(self._rejection(line, complaint))

        timer = self._clock.call_later(patience_s, give_up)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._leave(line)  # the place was given to a request that had just been cancelled
            raise
        finally:
            timer.cancel()
            line.waiting.pop(turn, None)

    def _leave(self, line: _Line) -> None:
        line.in_work -= 1
        for one in self._lines.values():
            while one.waiting and self._has_room(one):
                turn = next(iter(one.waiting))
                del one.waiting[turn]
                if not turn.done():
                    turn.set_result(None)
                    one.in_work += 1

    def _has_room(self, line: _Line) -> bool:
        return line.in_work < self.limit.per_kind and self.in_work < self.limit.requests

    def _standing_s(self, line: _Line) -> float:
        return 0.0 if line.standing_since is None else self._clock.monotonic() - line.standing_since

    def _rejection(self, line: _Line, complaint: str) -> OverloadedError:
        self._recent.reject()
        spread = min(max(RETRY_AFTER_MIN_S, math.ceil(self._recent.catching_up_s())), RETRY_AFTER_MAX_S)
        retry_after_s = 1 + int(self._rejections * GOLDEN_RATIO % 1 * spread)  # evenly, also while the spread grows
        self._rejections += 1
        return OverloadedError(f"{complaint}: {self.in_work} are in work, which is what can be done", retry_after_s)


CALLERS_MAX = 100_000  # about 20 MB; beyond it the oldest windows are forgotten


@dataclass(frozen=True, slots=True)
class RateLimit:
    """So many requests in so many seconds, for each caller. Raises ValueError."""

    requests: int
    window_s: int

    def __post_init__(self) -> None:
        if self.requests < 1 or self.window_s < 1:
            raise ValueError("requests and seconds are at least 1")


DEFAULT_RATE_LIMIT = RateLimit(600, 60)


def parse_rate_limit(text: str) -> RateLimit | None:
    """`600/60` is 600 requests in 60 seconds; `off` is None. Raises ValueError."""
    if text == "off":
        return None
    requests, slash, window_s = text.partition("/")
    if not slash or not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in (requests, window_s)):
        raise ValueError("allowed is requests/seconds, such as 600/60, or off")
    return RateLimit(int(requests), int(window_s))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a caller has left. `reset_s` is never 0: the window is over when so many seconds have passed."""

    is_allowed: bool
    remaining: int
    reset_s: int


@dataclass(slots=True)
class _Window:
    ends_at: float
    used: int = 0


class RequestCounter:
    """Counts the requests of each caller: so many in a window that begins with the first of them.

    Invariants: no caller is served more than `requests` times in one window; what is remembered is bounded, by the
    callers of one window and by CALLERS_MAX.
    """

    def __init__(self, limit: RateLimit, clock: Clock, callers_max: int = CALLERS_MAX) -> None:
        self.limit = limit
        self._clock = clock
        self._callers_max = callers_max
        # All windows are equally long, so that they end in the order in which they were added.
        self._windows: dict[str, _Window] = {}

    @property
    def callers(self) -> int:
        """How many are remembered."""
        return len(self._windows)

    def count(self, caller: str) -> Standing:
        """Count one request, unless the caller has none left."""
        now = self._clock.monotonic()
        window = self._windows.get(caller)
        if window is None or window.ends_at <= now:
            window = self._new_window(caller, now)
        is_allowed = window.used < self.limit.requests
        if is_allowed:
            window.used += 1
        return Standing(is_allowed, self.limit.requests - window.used, math.ceil(window.ends_at - now))

    def _new_window(self, caller: str, now: float) -> _Window:
        self._windows.pop(caller, None)
        while self._windows:
            oldest = next(iter(self._windows))
            if self._windows[oldest].ends_at > now and len(self._windows) < self._callers_max:
                break
            del self._windows[oldest]
        window = self._windows[caller] = _Window(now + self.limit.window_s)
        return window
