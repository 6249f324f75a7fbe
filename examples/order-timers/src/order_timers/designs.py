"""The designs that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from order_timers.database_poller import DatabasePoller
from order_timers.delay_queue import InProcessTimers, Reload
from order_timers.message_queue import MessageQueueTimers
from order_timers.order_book import OrderBook
from order_timers.port import OrderTimers
from osenv import Clock


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
