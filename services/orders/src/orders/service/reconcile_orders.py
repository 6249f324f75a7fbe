"""Orders of which payments has not heard, and orders whose timers never came (ADR 120).

    payments knows an earlier state    the event of the order's state is told again
    PENDING_PAYMENT after its time     its payment is accepted, if payments has one, else the order closes
    SHIPPED after its time             it completes

Invariant: nothing is done here that a message would not do, through the same use cases; a message that comes after all
finds it done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import MappingProxyType

from orders.domain.order import PAID_STATUSES, Order, OrderStatus, Payment
from orders.service import events
from orders.service.close_order import CloseOrder, ExpiryOutcome
from orders.service.payments import AcceptPayment, PaymentDesk
from orders.service.status_commands import CompleteOrder
from orders.service.use_case import OrderFilter, PageKey, Units, in_trace_of
from osenv import Clock
from servicekit.auth import PAYMENTS_ALL, PAYMENTS_READ, Caller
from servicekit.message import MessagePublisher, OutgoingMessage
from servicekit.process.reconciler import Check, Finding, Sweep

RECONCILER = Caller("order-reconciler", frozenset({PAYMENTS_READ, PAYMENTS_ALL}))
TELL_AGAIN = "tell again"  # the name of a span
ASKED_AT_ONCE = 100  # as many orders as payments takes in one question

# How far an order has come, in the words of payments; what it has never heard of comes before all of them.
_OPEN, _PAID, _CLOSED = "OPEN", "PAID", "CLOSED"
_RANKS = MappingProxyType({None: 0, _OPEN: 1, _PAID: 2, _CLOSED: 3})


@dataclass(frozen=True, slots=True)
class ReconcileOptions:
    """An order is looked at when nothing has moved it for `after_ms`; what was placed longer ago than `window_ms` is
    not compared with payments, if that is set."""

    after_ms: int
    completion_after_ms: int
    window_ms: int | None


class ToldOrdersCheck:
    """Implements `Check`: orders, from the newest to the oldest, against what payments has heard of them."""

    def __init__(
        self, units: Units, publisher: MessagePublisher, desk: PaymentDesk, clock: Clock, options: ReconcileOptions
    ) -> None:
        self._units = units
        self._publisher = publisher
        self._desk = desk
        self._clock = clock
        self._options = options
        self._sweep = Sweep(self._page)

    @property
    def has_more(self) -> bool:
        return self._sweep.has_more

    async def find(self, limit: int) -> list[Finding]:
        quiet_since_ms = self._clock.wall_ms() - self._options.after_ms
        settled = [one for one in await self._sweep.next(limit) if _moved_at_ms(one) <= quiet_since_ms]
        found: list[Finding] = []
        for start in range(0, len(settled), ASKED_AT_ONCE):
            asked = settled[start : start + ASKED_AT_ONCE]
            heard = await self._desk.heard_of(RECONCILER, [order.order_id for order in asked])
            for order in asked:
                known = heard.get(order.order_id)
                # A word of a later version is not behind ours.
                if _RANKS.get(known, _RANKS[_CLOSED]) < _RANKS[_word(order)]:
                    found.append(self._finding(order, known))
        return found

    async def _page(self, after: Order | None, limit: int) -> list[Order]:
        window_ms = self._options.window_ms
        since_ms = None if window_ms is None else self._clock.wall_ms() - window_ms
        return await _page(self._units, OrderFilter(created_from_ms=since_ms), after, limit)

    def _finding(self, order: Order, known: str | None) -> Finding:
        heard = "has never heard of it" if known is None else f"has heard that it is {known}"
        what = f"order {order.order_id} is {order.status}, and payments {heard}: tell payments"
        return Finding(what, lambda: self._tell(order))

    async def _tell(self, order: Order) -> bool:
        message = await self._message(order)
        with in_trace_of(order, TELL_AGAIN):
            await self._publisher.publish(message)
        return True

    async def _message(self, order: Order) -> OutgoingMessage:
        match _word(order):
            case "OPEN":
                return events.created(order)
            case "PAID":
                return events.paid(order)
        async with self._units.autocommit() as unit:
            history = await unit.orders.history(order.order_id)
        return events.closed(order, history[-1])


class OverdueOrdersCheck:
    """Implements `Check`: orders in one status that should have left it by themselves."""

    def __init__(
        self,
        units: Units,
        clock: Clock,
        status: OrderStatus,
        *,
        due_at_ms: Callable[[Order], int],
        move_on: Callable[[Order], Awaitable[bool]],
    ) -> None:
        self._units = units
        self._clock = clock
        self._status = status
        self._due_at_ms = due_at_ms
        self._move_on = move_on
        self._sweep = Sweep(self._page)

    @property
    def has_more(self) -> bool:
        return self._sweep.has_more

    async def find(self, limit: int) -> list[Finding]:
        now_ms = self._clock.wall_ms()
        return [self._finding(order) for order in await self._sweep.next(limit) if self._due_at_ms(order) <= now_ms]

    async def _page(self, after: Order | None, limit: int) -> list[Order]:
        return await _page(self._units, OrderFilter(status=self._status), after, limit)

    def _finding(self, order: Order) -> Finding:
        what = f"order {order.order_id} is still {self._status}, and its timer never came: move it on"
        return Finding(what, lambda: self._move_on(order))


def order_checks(
    units: Units,
    publisher: MessagePublisher,
    desk: PaymentDesk,
    clock: Clock,
    options: ReconcileOptions,
    *,
    accept_payment: AcceptPayment,
    close_order: CloseOrder,
    complete_order: CompleteOrder,
) -> tuple[Check, ...]:
    """The checks of orders; an overdue order is moved on before payments is told where it stands."""

    async def pay_or_close(order: Order) -> bool:
        """Money that is here pays the order, however late its event: its buyer has paid in time, or it goes back.

        An order that an undecided payment keeps open is asked for again in the next round.
        """
        for payment in await desk.payments_of(RECONCILER, order.order_id):
            if payment.was_captured and payment.captured_at_ms is not None:
                money = (payment.amount_minor, payment.currency, payment.captured_at_ms)
                await accept_payment(Payment(payment.payment_id, order.order_id, *money))
                return True
        return await close_order.expire(order.order_id) not in {ExpiryOutcome.HELD, ExpiryOutcome.TOO_EARLY}

    async def complete(order: Order) -> bool:
        await complete_order.fire(order.order_id)
        return True

    return (
        OverdueOrdersCheck(
            units,
            clock,
            OrderStatus.PENDING_PAYMENT,
            due_at_ms=lambda order: order.expires_at_ms + options.after_ms,
            move_on=pay_or_close,
        ),
        OverdueOrdersCheck(
            units,
            clock,
            OrderStatus.SHIPPED,
            due_at_ms=lambda order: (order.shipped_at_ms or 0) + options.completion_after_ms + options.after_ms,
            move_on=complete,
        ),
        ToldOrdersCheck(units, publisher, desk, clock, options),
    )


def _word(order: Order) -> str:
    """What payments calls an order in this status."""
    if order.status is OrderStatus.CLOSED:
        return _CLOSED
    return _PAID if order.status in PAID_STATUSES else _OPEN


def _moved_at_ms(order: Order) -> int:
    """When something happened that payments has to hear of."""
    return max(order.created_at_ms, order.paid_at_ms or 0, order.closed_at_ms or 0)


async def _page(units: Units, wanted: OrderFilter, after: Order | None, limit: int) -> list[Order]:
    place = None if after is None else PageKey(after.created_at_ms, after.order_id)
    async with units.autocommit() as unit:
        return await unit.orders.page(wanted, place, limit)
