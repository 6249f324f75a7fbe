"""Reads that go to the disk, away from the event loop.

Invariants: at most `COLD_READS_AT_ONCE_MAX` of them run; clients take turns, so that a client waits for one read of
each other client at most, however many reads those have asked for.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from mq_broker.core.limits import COLD_READS_AT_ONCE_MAX
from osenv import Disk, Lane

R = TypeVar("R")


@dataclass
class ColdReads:
    """Runs them, and knows how many there are: as long as there is one, no deleted file is closed (MISSION E3)."""

    disk: Disk
    running: int = 0
    _free: int = COLD_READS_AT_ONCE_MAX
    _waiting: dict[str, deque[asyncio.Future[None]]] = field(default_factory=dict)  # in the order of the clients' turns

    async def read(self, call: Callable[[], R], client: str = "") -> R:
        """What the reading `call` returns, when it is the turn of `client`; "" is the broker itself.

        Raises what `call` raises.
        """
        with self.several():
            await self._turn(client)
            try:
                return await self.disk.offload_in(Lane.READ, call)
            finally:
                self._next()

    @contextmanager
    def several(self) -> Iterator[None]:
        """For the block, which makes several reads of the same files, these files stay open."""
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1

    async def _turn(self, client: str) -> None:
        if self._free:
            self._free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # the turn came at the same moment
                self._next()
            raise

    def _next(self) -> None:
        """A read has ended: the client that has waited longest since its last turn has one."""
        while self._waiting:
            client = next(iter(self._waiting))
            turns = self._waiting.pop(client)
            turn = turns.popleft()
            if turns:
                self._waiting[client] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
