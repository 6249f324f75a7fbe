"""The designs that are compared: three ways to close an unpaid order behind one port, and what a run makes of them.

`DatabasePoller` looks at the database again and again (mechanism X4). It is simple, and nothing is lost at a restart;
but every look at an order that is not due is in vain, and an order closes up to an interval after its time.
`InProcessTimers` holds a delay queue in the memory of the process (mechanism X5). It is exact and asks the database
nothing; but a restart loses what it holds, loading all of it again makes instances fight for each other's orders, and
loading only one's own leaves the orders of a dead server to a person (mechanism X6).
`MessageQueueTimers` sends a delayed message that comes back when the order's time is over (mechanism X3). It lies in
the broker's log, whatever becomes of the instances, and it comes to one running member of the group.
"""

from __future__ import annotations

import asyncio
import enum
import heapq
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from mqclient import (
    Admin,
    ClientConfig,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MQClientError,
    Producer,
    PushConsumer,
)
from order_timers.order_book import OrderBook
from osenv import Clock
from osenv.clock import timeout


class TimerNotSetError(Exception):
    """The timer could not be set; the order must not be saved, for nothing would ever close it."""


class OrderTimers(Protocol):
    """The timers of one instance of the shop.

    Set before the order is saved: a timer without an order rings in vain, an order without a timer waits for ever.
    """

    async def start(self) -> None:
        """Begin to close what is due; called when the instance's process starts, again after each `kill`."""

    async def set(self, order_id: str, expires_at_ms: int) -> None:
        """Close the order at `expires_at_ms` (wall clock), unless it is paid by then. Raises TimerNotSetError."""

    async def kill(self) -> None:
        """The process dies as by SIGKILL: what it held in memory is gone."""


class DatabasePoller:
    """Implements `OrderTimers`: scans at every multiple of `interval_s`, plus `phase_s`, as cron does.

    With `server_id` it looks at the orders of this server only (mechanism X6).
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


GROUP = "order-timers"
TOPIC = "order-timeouts"
PAYMENT_WINDOW_LEVEL = 16  # mechanisms X3, D1: 30 minutes
QUEUES = 4


async def create_topic(url: str) -> None:
    """Topics exist before the instances start. Raises MQClientError."""
    async with Admin(url) as admin:
        await admin.update_topic(TOPIC, read_queue_count=QUEUES, write_queue_count=QUEUES)


class MessageQueueTimers:
    """Implements `OrderTimers` for the instance `server_id`; level 16 of the broker is the payment window."""

    def __init__(self, book: OrderBook, clock: Clock, url: str, server_id: str) -> None:
        self._book = book
        self._clock = clock
        self._url = url
        self._client_config = ClientConfig(instance_name=server_id)
        self._producer: Producer
        self._consumer: PushConsumer

    async def start(self) -> None:
        self._producer = Producer(GROUP, self._url, client_config=self._client_config)
        self._consumer = PushConsumer(
            GROUP,
            self._url,
            client_config=self._client_config,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        self._consumer.subscribe(TOPIC, "*")
        self._consumer.register_message_listener(self._ring)
        await self._producer.start()
        await self._consumer.start()

    async def set(self, order_id: str, expires_at_ms: int) -> None:
        body = json.dumps({"order_id": order_id, "expires_at_ms": expires_at_ms}).encode()
        try:
            await self._producer.send(Message(TOPIC, body, keys=order_id, delay_level=PAYMENT_WINDOW_LEVEL))
        except MQClientError as error:
            raise TimerNotSetError(f"the timer of {order_id} could not be set: {error}") from error

    async def kill(self) -> None:
        await self._consumer.shutdown(timeout_s=0.0)
        await self._producer.shutdown(timeout_s=0.0)

    async def _ring(self, messages: list[MessageExt]) -> ConsumeStatus:
        """Paid: ignored. Due: closed. Early, because clocks differ: sent again for the rest, never ignored."""
        for message in messages:
            timer = json.loads(message.body)
            order = await self._book.find(timer["order_id"])
            if order is None or not order.is_pending:
                continue
            rest_ms = order.expires_at_ms - self._clock.wall_ms()
            if rest_ms > 0:
                await self._producer.send(Message(TOPIC, message.body, keys=order.order_id, delay_ms=rest_ms))
            else:
                await self._book.close(order.order_id)
        return ConsumeStatus.CONSUME_SUCCESS


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a design may use; `queue_url` is empty where it needs none."""

    book: OrderBook
    clock: Clock
    queue_url: str


@dataclass(frozen=True, slots=True)
class Design:
    """`build` makes the timers of one instance from the surroundings and its server id.

    With `by_server` every order belongs to the server that took it, and a person has to give it to another one.
    """

    name: str
    build: Callable[[Surroundings, str], OrderTimers]
    by_server: bool = False
    needs_queue: bool = False


POLLER = Design("poller, 60 s", lambda it, _: DatabasePoller(it.book, it.clock))
EAGER_POLLER = Design("poller, 10 s", lambda it, _: DatabasePoller(it.book, it.clock, interval_s=10))
POLLER_BY_SERVER = Design(
    "poller, by server", lambda it, server_id: DatabasePoller(it.book, it.clock, server_id=server_id), by_server=True
)
DELAY_QUEUE = Design("delay queue", lambda it, server_id: InProcessTimers(it.book, it.clock, server_id, Reload.NOTHING))
DELAY_QUEUE_RELOAD = Design(
    "delay queue, reload all", lambda it, server_id: InProcessTimers(it.book, it.clock, server_id, Reload.ALL)
)
DELAY_QUEUE_BY_SERVER = Design(
    "delay queue, by server",
    lambda it, server_id: InProcessTimers(it.book, it.clock, server_id, Reload.OWN),
    by_server=True,
)
MESSAGE_QUEUE = Design(
    "message queue",
    lambda it, server_id: MessageQueueTimers(it.book, it.clock, it.queue_url, server_id),
    needs_queue=True,
)

DESIGNS = (
    *(POLLER, EAGER_POLLER, POLLER_BY_SERVER),
    *(DELAY_QUEUE, DELAY_QUEUE_RELOAD, DELAY_QUEUE_BY_SERVER),
    MESSAGE_QUEUE,
)
