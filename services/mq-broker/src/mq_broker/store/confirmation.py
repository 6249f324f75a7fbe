"""The confirm offset: what consumers may see, and who waits until it has passed them (RELIABILITY.md (b)).

A master that acknowledges alone has none: what its own disk says is enough. A synchronous master confirms what its
in-sync slaves have, a slave what its master has told it is confirmed.

Invariants: `end` never goes back; who waits is answered once, in the order of the ends.
"""

from __future__ import annotations

import asyncio
import enum
from collections import deque
from collections.abc import Callable

from osenv import Clock
from osenv.clock import Timer

TIMER_EARLY_S = 0.002  # so much too early a timer may call


class Copies(enum.Enum):
    """What the in-sync slaves have of a message that is stored; RocketMQ's send statuses."""

    SEND_OK = 0
    SLAVE_NOT_AVAILABLE = 1  # the master alone has it, as its in-sync set allows
    FLUSH_SLAVE_TIMEOUT = 2  # not all of them have it in time; they may have it later


_Waiter = tuple[int, float, "asyncio.Future[Copies]"]  # end, deadline, answer


class Confirmation:
    """Of one store. `end` is None while nothing has to be confirmed by anybody else."""

    def __init__(self, clock: Clock, on_confirmed: Callable[[], None]) -> None:
        """`on_confirmed` is called after `end` has grown."""
        self._clock, self._on_confirmed = clock, on_confirmed
        self._waiters: deque[_Waiter] = deque()
        self._timer: Timer | None = None
        self.timeout_s = 0.0
        self.end: int | None = None
        self.is_alone = False
        # Told of each answer how long the first one that it goes to has waited, in seconds.
        self.on_answered: Callable[[float], None] = lambda _seconds: None

    def begin(self, end: int, *, timeout_s: float) -> None:
        """From now on something has to be confirmed; who waits for it gives up after so many seconds."""
        self.end, self.timeout_s = end, timeout_s

    def deadline(self) -> float:
        """Until when somebody waits who begins now; monotonic seconds, 0.0 when there is nothing to wait for."""
        return 0.0 if self.end is None else self._clock.monotonic() + self.timeout_s

    async def wait(self, end: int, deadline: float) -> Copies:
        """What the slaves have of everything below `end`, once they have it, or at the deadline."""
        if self.end is None:
            return Copies.SEND_OK
        if self.end >= end:
            return Copies.SLAVE_NOT_AVAILABLE if self.is_alone else Copies.SEND_OK
        waiter: asyncio.Future[Copies] = asyncio.get_running_loop().create_future()
        self._waiters.append((end, deadline, waiter))
        if self._timer is None:
            self._set_timer()
        return await waiter

    def advance(self, end: int, *, alone: bool) -> None:
        """Everything below `end` is confirmed, by the master alone or not."""
        self.is_alone = alone
        if self.end is None or end <= self.end:
            return
        self.end = end
        self._answer(lambda waiter: waiter[0] <= end, Copies.SLAVE_NOT_AVAILABLE if alone else Copies.SEND_OK)
        self._on_confirmed()

    def give_up(self) -> None:
        """Nothing more will be confirmed: who waits is answered now, FLUSH_SLAVE_TIMEOUT."""
        self._answer(lambda _: True, Copies.FLUSH_SLAVE_TIMEOUT)

    def close(self) -> None:
        """Nobody is answered any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        self._timer = self._clock.call_later(max(0.0, self._waiters[0][1] - self._clock.monotonic()), self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.monotonic() + TIMER_EARLY_S
        self._answer(lambda waiter: waiter[1] <= now, Copies.FLUSH_SLAVE_TIMEOUT)
        if self._waiters:
            self._set_timer()

    def _answer(self, is_ready: Callable[[_Waiter], bool], copies: Copies) -> None:
        """The first ones, as long as they are ready."""
        if self._waiters and is_ready(self._waiters[0]):
            self.on_answered(self._clock.monotonic() - (self._waiters[0][1] - self.timeout_s))
        while self._waiters and (self._waiters[0][2].done() or is_ready(self._waiters[0])):
            waiter = self._waiters.popleft()[2]
            if not waiter.done():
                waiter.set_result(copies)
