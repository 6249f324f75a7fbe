"""The broker's own time: the wall clock at start plus monotonic time, never below the newest store timestamp.

Delays are measured in it; what is to be delivered at a time of the calendar follows the wall clock, and this knows how
far the two are apart. A replica that is promoted goes on with the two clocks of its master, as far as they differ from
its own (docs/adr/0112): what the master has stored is due by those.

Invariants: broker time never goes back, not while the process runs (the wall clock may step as it likes) and not below
what the log already says. Across a restart only the wall clock remains (docs/guides/guarantees.md), and what is
known of a master until the machine starts anew.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

STEP_MS_MIN = 1_000  # clocks that are closer count as one: rounding, and a drift between two looks, are no steps
ROUNDING_MS = 1e-4  # more than floating point can be wrong by, and too little to matter
# A larger difference between the clocks of two brokers is logged. A heartbeat takes up to a second between them.
DIFFERENCE_TOLD_MS = 2_000
HEARD_KEPT = 8  # of what another broker has said of its clocks


@dataclass(frozen=True, slots=True)
class MasterTime:
    """The master's clocks, as its replica knows them: how far each is ahead of the replica's monotonic clock of this
    boot.

    All in milliseconds. `own_wall` is the replica's own wall clock, seen at the same time.
    """

    boot_id: str
    broker: int
    wall: int
    own_wall: int

    def is_near(self, other: MasterTime) -> bool:
        """Whether both say the same of all clocks, as far as it matters."""
        pairs = ((self.broker, other.broker), (self.wall, other.wall), (self.own_wall, other.own_wall))
        return self.boot_id == other.boot_id and all(abs(one - two) < STEP_MS_MIN for one, two in pairs)

    @property
    def differs(self) -> bool:
        """Whether the master's clocks are not the replica's own."""
        return max(abs(self.broker - self.own_wall), abs(self.wall - self.own_wall)) >= STEP_MS_MIN

    def to_json(self) -> list[Any]:
        """As replica.json has it."""
        return [self.boot_id, self.broker, self.wall, self.own_wall]

    @classmethod
    def from_json(cls, fields: list[Any]) -> MasterTime:
        """The inverse. Raises TypeError or ValueError when it is not of this form."""
        boot_id, broker, wall, own_wall = fields
        return cls(str(boot_id), int(broker), int(wall), int(own_wall))


class _Heard(NamedTuple):
    wall: float
    broker: float


class HeardClocks:
    """Another broker's clocks, as it has told them of late.

    What it says has been on its way, so its clocks are at least where they seem to be: the greatest of the last ones is
    the nearest.
    """

    def __init__(self, wall_ms: Callable[[], float], monotonic: Callable[[], float]) -> None:
        self._wall_ms, self._monotonic = wall_ms, monotonic
        self._heard: deque[_Heard] = deque(maxlen=HEARD_KEPT)
        self._is_told = False

    def forget(self) -> None:
        """Another broker speaks from now on, or the same one with other clocks."""
        self._heard.clear()

    def hear(self, wall_ms: int, broker_ms: int = 0) -> None:
        """What the other broker says now. 0: it does not tell its wall clock, as versions before this one."""
        if wall_ms:
            now_ms = self._monotonic() * 1_000
            self._heard.append(_Heard(wall_ms - now_ms, broker_ms - now_ms))

    @property
    def ahead_ms(self) -> int:
        """How far the other's wall clock is ahead of this broker's, below 0 if behind; 0 while nothing is known."""
        return round(max(one.wall for one in self._heard) - self._own_wall) if self._heard else 0

    def has_news(self) -> bool:
        """Whether a difference that operators have to know has come or gone since this was asked last."""
        was_told, self._is_told = self._is_told, abs(self.ahead_ms) >= DIFFERENCE_TOLD_MS
        return was_told != self._is_told

    def agrees(self) -> bool:
        """Whether the other's wall clock is known, and is this broker's."""
        return bool(self._heard) and abs(self.ahead_ms) < STEP_MS_MIN

    def master_time(self, boot_id: str) -> MasterTime | None:
        """The clocks, as those of a master; None while they are not known."""
        if not self._heard:
            return None
        broker, wall = max(one.broker for one in self._heard), max(one.wall for one in self._heard)
        return MasterTime(boot_id, math.floor(broker), math.floor(wall), round(self._own_wall))

    @property
    def _own_wall(self) -> float:
        return self._wall_ms() - self._monotonic() * 1_000


class BrokerTime:
    """Milliseconds since 1970, as the broker stamps and compares them (mechanism D4)."""

    def __init__(
        self,
        *,
        wall_ms: float,
        monotonic: Callable[[], float],
        newest_store_ms: int = 0,
        wall: Callable[[], float] | None = None,
        master: MasterTime | None = None,
    ) -> None:
        """`wall_ms` has its fraction: a clock that lags by half a millisecond delivers that much late.

        `wall` reads the wall clock later, in the same unit; without it both count as one. `master` are the clocks to go
        on with, of the machine's present boot.
        """
        self._monotonic, self._wall = monotonic, wall
        self._start = monotonic()
        if master is not None:
            wall_ms = master.broker + self._start * 1_000
        self._start_ms = int(max(wall_ms, newest_store_ms))
        self._fraction_ms = max(wall_ms, newest_store_ms) - self._start_ms
        self._ahead_of_wall_ms = 0
        self._master = master
        self._own_wall = 0 if master is None else master.own_wall

    @property
    def ahead_of_wall_ms(self) -> int:
        """How far broker time is ahead of the wall clock, below 0 if it is behind; only a step changes it."""
        if self._wall is not None:
            ahead_ms = round(self._start_ms + self._elapsed_ms() - self.wall_ms())
            if abs(ahead_ms - self._ahead_of_wall_ms) >= STEP_MS_MIN:
                self._ahead_of_wall_ms = ahead_ms if abs(ahead_ms) >= STEP_MS_MIN else 0
        return self._ahead_of_wall_ms

    def wall_ms(self) -> float:
        """The wall clock: the former master's, until the own one is set, or shows the same."""
        own_ms = self._start_ms + self._elapsed_ms() if self._wall is None else self._wall()
        if self._master is None:
            return own_ms
        now_ms = self._monotonic() * 1_000
        before, self._own_wall = self._own_wall, round(own_ms - now_ms)
        if abs(self._own_wall - before) >= STEP_MS_MIN or abs(self._own_wall - self._master.wall) < STEP_MS_MIN:
            self.follow_own_wall()
            return own_ms
        return self._master.wall + now_ms

    @property
    def follows_master_wall(self) -> bool:
        """Whether the wall clock is that of a former master."""
        return self._master is not None

    def follow_own_wall(self) -> None:
        """This machine's own wall clock counts from now on. Broker time goes on as it was."""
        self._master = None

    def now_ms(self) -> int:
        """The time now, in whole milliseconds that have passed: what is due is compared with it."""
        return self._start_ms + int(self._elapsed_ms() + ROUNDING_MS)

    def stamp_ms(self) -> int:
        """The store timestamp of a record that is written now: rounded up, so that no delay after it is cut short."""
        return self._start_ms + math.ceil(self._elapsed_ms() - ROUNDING_MS)

    def seconds_until(self, due_ms: int) -> float:
        """How long until `due_ms`, not below zero, with a fraction of a millisecond more rather than less."""
        return max(0.0, (due_ms - self._start_ms - self._elapsed_ms()) / 1000)

    def _elapsed_ms(self) -> float:
        return self._fraction_ms + (self._monotonic() - self._start) * 1000
