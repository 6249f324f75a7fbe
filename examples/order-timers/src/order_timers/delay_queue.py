"""The second design that the course rejects: a delay queue in the memory of the process (MISSION X5).

It is exact and asks the database nothing. A restart loses what it holds; loading it again at the start makes instances
fight for each other's orders, and loading only one's own leaves the orders of a dead server to a person (X6).
"""

from __future__ import annotations

import asyncio
import enum
import heapq
from contextlib import suppress

from order_timers.order_book import OrderBook
from osenv import Clock
from osenv.clock import timeout


class Reload(enum.Enum):
    """What an instance reads from the database when it starts."""

    NOTHING = "nothing"
    ALL = "all"
    OWN = "own"


class DelayQueue:
    """As Java's: any number of items, each to be taken when it is due."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._items: list[tuple[int, str]] = []
        self._put = asyncio.Event()

    def put(self, due_ms: int, item: str) -> None:
        heapq.heappush(self._items, (due_ms, item))
        self._put.set()

    async def take(self) -> str:
        """The next item, once it is due."""
        while not self._items or self._items[0][0] > self._clock.wall_ms():
            self._put.clear()
            await self._wait_for_change()
        return heapq.heappop(self._items)[1]

    async def _wait_for_change(self) -> None:
        """Return when something is put, or when the first item is due."""
        if not self._items:
            await self._put.wait()
            return
        with suppress(TimeoutError):
            async with timeout(self._clock, (self._items[0][0] - self._clock.wall_ms()) / 1000):
                await self._put.wait()


class InProcessTimers:
    """Implements `OrderTimers` for the instance `server_id`."""

    def __init__(self, book: OrderBook, clock: Clock, server_id: str, reload: Reload) -> None:
        self._book = book
        self._clock = clock
        self._server_id = server_id
        self._reload = reload
        self._queue = DelayQueue(clock)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._queue = DelayQueue(self._clock)
        if self._reload is not Reload.NOTHING:
            server_id = self._server_id if self._reload is Reload.OWN else None
            for order in await self._book.load_pending(server_id):
                self._queue.put(order.expires_at_ms, order.order_id)
        self._task = asyncio.create_task(self._run(), name=f"delay queue of {self._server_id}")

    async def set(self, order_id: str, expires_at_ms: int) -> None:
        self._queue.put(expires_at_ms, order_id)

    async def kill(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            order_id = await self._queue.take()
            order = await self._book.find(order_id)
            if order is not None and order.is_pending:
                await self._book.close(order_id)
