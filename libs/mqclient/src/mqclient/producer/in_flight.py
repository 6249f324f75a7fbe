"""How much may be under way at once, where no caller waits for each send (RocketMQ's semaphores for such sends).

Invariant: what is under way never exceeds the limits.
"""

from __future__ import annotations

import asyncio

from mqclient.errors import TooManyRequestsError
from mqclient.lifecycle import wait_event
from osenv import Clock


class InFlightLimit:
    """Counts sends of one `kind`, and the bytes of their bodies."""

    def __init__(self, kind: str, count_max: int, bytes_max: int, clock: Clock) -> None:
        self._kind = kind
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._clock = clock
        self._bytes = 0
        self._given_back = asyncio.Event()
        self.count = 0

    def take(self, size: int) -> None:
        """Count one more. Raises TooManyRequestsError."""
        if self.count >= self._count_max or self._bytes + size > self._bytes_max:
            raise TooManyRequestsError(
                f"{self.count:,} {self._kind} sends with {self._bytes:,} bytes are under way; at most "
                f"{self._count_max:,} with {self._bytes_max:,} bytes may be"
            )
        self.count += 1
        self._bytes += size

    async def take_by(self, size: int, deadline: float) -> None:
        """Count one more as soon as there is room. Raises TooManyRequestsError at `deadline` (monotonic)."""
        while True:
            try:
                self.take(size)
            except TooManyRequestsError:
                self._given_back.clear()
                if not await wait_event(self._clock, self._given_back, deadline - self._clock.monotonic()):
                    raise
            else:
                return

    def give_back(self, size: int) -> None:
        """One has ended."""
        self.count -= 1
        self._bytes -= size
        self._given_back.set()

    async def wait_until_idle(self, deadline: float) -> bool:
        """Whether nothing is under way any more, at `deadline` (monotonic) at the latest."""
        while self.count:
            self._given_back.clear()
            if not await wait_event(self._clock, self._given_back, deadline - self._clock.monotonic()):
                return False
        return True
