"""The first design that the course rejects: look at the database again and again (MISSION X4).

It is simple, and nothing is lost at a restart. Every look at an order that is not due is in vain, and an order closes
up to an interval after its time.
"""

from __future__ import annotations

import asyncio

from order_timers.order_book import OrderBook
from osenv import Clock


class DatabasePoller:
    """Implements `OrderTimers`: scans at every multiple of `interval_s`, plus `phase_s`, as cron does.

    With `server_id` it looks at the orders of this server only (MISSION X6).
    """

    def __init__(
        self, book: OrderBook, clock: Clock, *, interval_s: int = 60, phase_s: int = 0, server_id: str | None = None
    ) -> None:
        self._book = book
        self._clock = clock
        self._interval_ms = interval_s * 1000
        self._phase_ms = phase_s * 1000
        self._server_id = server_id
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="database poller")

    async def set(self, order_id: str, expires_at_ms: int) -> None:
        """Nothing to do: the database knows both."""

    async def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            since_ms = (self._clock.wall_ms() - self._phase_ms) % self._interval_ms
            await self._clock.sleep((self._interval_ms - since_ms) / 1000)
            for order in await self._book.scan(self._server_id):
                await self._book.close(order.order_id)
