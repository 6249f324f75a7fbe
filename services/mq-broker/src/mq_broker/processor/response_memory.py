"""How much of the broker's memory responses take that clients have not read yet.

A response is built only when there is room for the longest one; until then it waits for its turn. Clients (connections)
get equal parts: one may have `CLIENT_RESPONSE_BYTES_MAX`, and no more than what is left for the others.

Invariants: `used` is the sum of all shares and never above `bytes_max`, but for the responses to requests that a stream
is always allowed, one at a time; whoever waits is called in turn, client by client, one at a step of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass

from mq_broker.core.limits import (
    CLIENT_RESPONSE_BYTES_MAX,
    RESPONSE_BYTES,
    RESPONSE_MEMORY_BYTES_MAX,
    STALLED_WRITE_S,
)
from osenv import Clock, Timer

log = logging.getLogger(__name__)


class ResponseMemory:
    """Of one broker."""

    def __init__(self, clock: Clock, bytes_max: int = RESPONSE_MEMORY_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        self.clock = clock
        self._accounts: dict[str, Account] = {}
        self.break_connections: Callable[[Collection[str]], object] = lambda _clients: None  # which do not read
        self._shares: set[Share] = set()
        self._waiting: dict[str, dict[Share, Callable[[], None]]] = {}  # by client, in the order of their turns
        self._is_scheduled = False
        self._relief: Timer | None = None

    def share(self, client: str) -> Share:
        """The share of one more stream or call of `client`; to be closed."""
        account = self._accounts.get(client)
        if account is None:
            account = self._accounts[client] = Account()
        account.shares += 1
        share = Share(self, client, account)
        self._shares.add(share)
        return share

    def room(self, client: str) -> int:
        """How many bytes more the client may have now."""
        account = self._accounts.get(client)
        return min(CLIENT_RESPONSE_BYTES_MAX, self.bytes_max - self.used) - (account.used if account else 0)

    @property
    def waiting_clients(self) -> int:
        """How many clients wait for room."""
        return len(self._waiting)

    def given_back(self, size: int) -> None:
        """So many bytes are in use no longer."""
        self.used -= size
        if self._waiting:
            self._schedule()

    def wait(self, share: Share, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is the share's turn, and there is room for it."""
        self._waiting.setdefault(share.client, {})[share] = go_on
        self._schedule()
        if self._relief is None:
            self._relief = self.clock.call_later(STALLED_WRITE_S, self._relieve)

    def leave(self, share: Share) -> None:
        """The share is closed."""
        if share in self._shares:
            self._shares.remove(share)
            share.account.shares -= 1
            if not share.account.shares:
                del self._accounts[share.client]
        if (waiting := self._waiting.get(share.client)) is not None:
            waiting.pop(share, None)
            if not waiting:
                del self._waiting[share.client]

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._call_next)

    def _call_next(self) -> None:
        self._is_scheduled = False
        client = next((client for client in self._waiting if self.room(client) >= RESPONSE_BYTES), None)
        if client is None:
            return
        waiting = self._waiting.pop(client)
        share = next(iter(waiting))
        go_on = waiting.pop(share)
        if waiting:
            self._waiting[client] = waiting
        self._schedule()
        go_on()

    def _relieve(self) -> None:
        """No room for a while: break connections that have not taken a response for as long, those with most first.

        As many as it needs for one response of each other client that waits.
        """
        self._relief = None
        if not self._waiting:
            return
        self._relief = self.clock.call_later(STALLED_WRITE_S, self._relieve)
        if self.bytes_max - self.used >= RESPONSE_BYTES:
            return  # who waits has its own part in use
        before = self.clock.monotonic() - STALLED_WRITE_S
        stalled = {one.client for one in self._shares if one.writing_since is not None and one.writing_since <= before}
        parts = (self._accounts[client].used for client in self._waiting.keys() - stalled)
        waiting = sum(used + RESPONSE_BYTES <= CLIENT_RESPONSE_BYTES_MAX for used in parts)
        needed = waiting * RESPONSE_BYTES - (self.bytes_max - self.used)
        broken = []
        for client in sorted(stalled, key=lambda client: self._accounts[client].used, reverse=True):
            if needed <= 0:
                break
            needed -= self._accounts[client].used
            broken.append(client)
        if broken:
            log.warning(
                "no room for responses: breaking %d of %d connections that do not read", len(broken), len(stalled)
            )
            self.break_connections(broken)


@dataclass(eq=False, slots=True)
class Account:
    """What one client has: streams and calls, bytes of their responses, open polls."""

    shares: int = 0
    used: int = 0
    polls: int = 0


@dataclass(eq=False, slots=True)
class Share:
    """What one stream or call takes of the memory."""

    memory: ResponseMemory
    client: str
    account: Account
    used: int = 0
    writing_since: float | None = None  # by the monotonic clock, while a response is being written

    @property
    def may_build(self) -> bool:
        """Whether there is room for a response of any length."""
        used = self.account.used + RESPONSE_BYTES
        return used <= CLIENT_RESPONSE_BYTES_MAX and used <= self.memory.bytes_max - self.memory.used

    @property
    def may_read(self) -> bool:
        """Whether one more request may be read: there is room, or nothing of this stream waits to be written."""
        used, memory = self.account.used, self.memory
        return not self.used or (used < CLIENT_RESPONSE_BYTES_MAX and used < memory.bytes_max - memory.used)

    def take(self, size: int) -> None:
        """`size` bytes more are in use."""
        self.used += size
        self.account.used += size
        self.memory.used += size

    def give_back(self, size: int) -> None:
        """`size` bytes of it are in use no longer."""
        self.used -= size
        self.account.used -= size
        self.memory.given_back(size)

    def wait(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` at this share's next turn with room for a response of any length; once."""
        self.memory.wait(self, go_on)

    async def reserve(self) -> None:
        """Wait for room for a response of any length, and take it."""
        if not self.may_build:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.wait(lambda: None if turn.done() else turn.set_result(None))
            await turn
        self.take(RESPONSE_BYTES)

    def close(self) -> None:
        """Give everything back."""
        self.give_back(self.used)
        self.memory.leave(self)
