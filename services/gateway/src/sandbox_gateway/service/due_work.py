"""Work that comes due: a loop that works, and then sleeps until the next of it is due, or until it is woken.

Invariants: what is due is read from the database each time, so that nothing has to survive in memory; a database that
does not answer ends nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from osenv import Clock
from servicekit.errors import StorageUnavailableError
from servicekit.wake import Wake

STORAGE_RETRY_MS = 500
# The wall clock may be set forward while the loop sleeps by the monotonic one.
SLEEP_MAX_S = 5.0

log = structlog.get_logger(__name__)


class DueWork:
    """`work` does some of what is due and returns the wall-clock moment when it wants to be called next, or None."""

    def __init__(self, name: str, work: Callable[[], Awaitable[int | None]], clock: Clock) -> None:
        self.name = name
        self._work = work
        self._clock = clock
        self._wake = Wake()
        self._stopping = False
        self._is_storage_away = False

    def wake(self) -> None:
        """Something new may be due."""
        self._wake.ring()

    def stop(self) -> None:
        """Let `run` return after the work in hand."""
        self._stopping = True
        self._wake.ring()

    async def run(self) -> None:
        """Until `stop`."""
        while not self._stopping:
            self._wake.reset()  # before reading: what is written after the read wakes again
            await self._sleep_until(await self._next_moment_ms())

    async def _next_moment_ms(self) -> int | None:
        try:
            moment_ms = await self._work()
        except StorageUnavailableError as error:
            if not self._is_storage_away:
                log.warning(
                    "the database does not answer; trying again until it does", work=self.name, error=str(error)
                )
            self._is_storage_away = True
            return self._clock.wall_ms() + STORAGE_RETRY_MS
        if self._is_storage_away:
            log.info("the database answers again", work=self.name)
        self._is_storage_away = False
        return moment_ms

    async def _sleep_until(self, moment_ms: int | None) -> None:
        if self._stopping:
            return
        rest_s = SLEEP_MAX_S if moment_ms is None else (moment_ms - self._clock.wall_ms()) / 1000
        await self._wake.wait(self._clock, min(max(rest_s, 0.0), SLEEP_MAX_S))
