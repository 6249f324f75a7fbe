"""Orders as they change: a follower of one gets its present state first, and then each new one.

A message of `order-events` wakes the streams of its order, and each of them reads the order again: what is sent is what
the database says, whatever came twice, late or not at all. A stream reads it again with every heartbeat too, so that a
queue that is away makes it late and not wrong.

Invariants: a stream never has anything waiting in memory but the word "look again"; it ends when its order is final,
when the feed closes, and after STREAM_MAX_S at the latest, because tokens expire and a client that still wants it asks
again; the number of streams is bounded, for each caller and for all of them.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator
from typing import Protocol

import structlog

from orders.domain.order import Order, OrderStatus
from orders.service.payments import FeedClosedError, TooManyStreamsError
from osenv import Clock
from osenv.clock import timeout
from servicekit.auth import Caller
from servicekit.errors import StorageUnavailableError

STREAMS_MAX = 1_000
STREAMS_PER_CALLER_MAX = 20  # a person with many tabs; browsers open six connections to a host over HTTP/1.1
HEARTBEAT_S = 15.0
STREAM_MAX_S = 900.0

FINAL_STATUSES = frozenset({OrderStatus.COMPLETED, OrderStatus.CLOSED})

log = structlog.get_logger(__name__)


class OrderReader(Protocol):
    """What the feed asks of the queries."""

    async def order(self, order_id: str, caller: Caller) -> Order:
        """Raises UnknownOrderError, also for an order that the caller may not see."""


class OrderFeed:
    """All open streams of this process."""

    def __init__(
        self,
        orders: OrderReader,
        clock: Clock,
        *,
        streams_max: int = STREAMS_MAX,
        streams_per_caller_max: int = STREAMS_PER_CALLER_MAX,
    ) -> None:
        self._orders = orders
        self._clock = clock
        self._streams_max = streams_max
        self._streams_per_caller_max = streams_per_caller_max
        self._streams: defaultdict[str, set[OrderStream]] = defaultdict(set)
        self._by_caller: Counter[str] = Counter()
        self._is_closed = False

    @property
    def open_streams(self) -> int:
        return self._by_caller.total()

    def tell(self, order_id: str) -> None:
        """The order may have changed."""
        for stream in self._streams.get(order_id, ()):
            stream.wake()

    async def open(self, order_id: str, caller: Caller) -> OrderStream:
        """A stream that its user closes. Raises UnknownOrderError, also for an order that the caller may not see,
        TooManyStreamsError, FeedClosedError, StorageUnavailableError.
        """
        if self._is_closed:
            raise FeedClosedError
        if self.open_streams >= self._streams_max:
            raise TooManyStreamsError(self._streams_max)
        if self._by_caller[caller.subject] >= self._streams_per_caller_max:
            raise TooManyStreamsError(self._streams_per_caller_max)
        # Counted before anything is awaited, or many could pass the check together.
        stream = OrderStream(self, self._orders, self._clock, order_id, caller)
        self._streams[order_id].add(stream)
        self._by_caller[caller.subject] += 1
        try:
            await stream.begin()
        except BaseException:
            stream.close()
            raise
        return stream

    def close(self) -> None:
        """End every stream, and open no more: the process is about to stop."""
        self._is_closed = True
        for streams in list(self._streams.values()):
            for stream in list(streams):
                stream.end()

    def forget(self, stream: OrderStream) -> None:
        """The stream has ended; harmless when it was forgotten before."""
        streams = self._streams.get(stream.order_id, set())
        if stream not in streams:
            return
        streams.discard(stream)
        if not streams:
            del self._streams[stream.order_id]
        self._by_caller[stream.caller.subject] -= 1
        if not self._by_caller[stream.caller.subject]:
            del self._by_caller[stream.caller.subject]


class OrderStream:
    """One follower of one order; made by OrderFeed.open."""

    def __init__(self, feed: OrderFeed, orders: OrderReader, clock: Clock, order_id: str, caller: Caller) -> None:
        self.order_id = order_id
        self.caller = caller
        self._feed = feed
        self._orders = orders
        self._clock = clock
        self._look_again = asyncio.Event()
        self._is_ended = False
        self._first: Order | None = None

    async def begin(self) -> None:
        """Read the order for the first time. Raises UnknownOrderError, StorageUnavailableError."""
        self._first = await self._orders.order(self.order_id, self.caller)

    def wake(self) -> None:
        self._look_again.set()

    def end(self) -> None:
        """`states` returns as soon as it runs again."""
        self._is_ended = True
        self._look_again.set()

    def close(self) -> None:
        """Give the place back; to be called once the iteration has ended."""
        self.end()
        self._feed.forget(self)

    async def states(self) -> AsyncGenerator[Order | None, None]:
        """The order now, then after each change; None now and then, when nothing has happened for HEARTBEAT_S."""
        last = self._first
        ends_at = self._clock.monotonic() + STREAM_MAX_S
        yield last
        while last is not None and last.status not in FINAL_STATUSES:
            await self._change_or_heartbeat()
            if self._is_ended or self._clock.monotonic() >= ends_at:
                return
            self._look_again.clear()  # before reading: what changes while it is read is read again
            try:
                order = await self._orders.order(self.order_id, self.caller)
            except StorageUnavailableError as error:
                # A new stream would be rejected as well: better late than gone.
                log.warning("a followed order cannot be read now", order_id=self.order_id, error=str(error))
                order = last
            yield None if order == last else order
            last = order

    async def _change_or_heartbeat(self) -> None:
        try:
            async with timeout(self._clock, HEARTBEAT_S):
                await self._look_again.wait()
        except TimeoutError:
            return
