"""Which orders a caller may see and change, and in which version.

Invariant: an order that the caller may not see is answered like one that does not exist, so that nobody learns of it.
"""

from __future__ import annotations

import telemetry
from orders.domain.errors import UnknownOrderError, VersionMismatchError
from orders.domain.order import Order
from orders.domain.status_change import Origin
from orders.service.order_trace import trace_id_of
from orders.service.unit_of_work import Orders
from osenv import Clock
from servicekit.auth import ORDERS_ALL, Caller


async def find_visible(orders: Orders, order_id: str, caller: Caller) -> Order:
    """The order, for its buyer and for whoever may see all orders. Raises UnknownOrderError."""
    order = await orders.get(order_id)
    if order.buyer_id != caller.subject and not caller.has(ORDERS_ALL):
        raise UnknownOrderError(order_id)
    return order


def require_buyer(order: Order, caller: Caller) -> None:
    """Raises UnknownOrderError unless the caller is the order's buyer: what is the buyer's to do, nobody else does."""
    if order.buyer_id != caller.subject:
        raise UnknownOrderError(order.order_id)


def require_version(order: Order, version: int | None) -> None:
    """Raises VersionMismatchError when a version is asked for and the order is in another."""
    if version is not None and order.version != version:
        raise VersionMismatchError(order.order_id, version)


def origin_of(actor: str, clock: Clock, order: Order | None = None) -> Origin:
    """A change by `actor`, now, in the trace of `order`; of an order without one, in the trace that is going on."""
    trace_id = None if order is None else trace_id_of(order)
    return Origin(actor, clock.wall_ms(), trace_id or telemetry.current_trace_id())
