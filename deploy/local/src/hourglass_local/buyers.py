"""The buyers: they carry out a plan side by side, with the seller and the operator, and keep what they were told.

After a payment the seller ships or cancels the order, the buyer confirms it, or a part of the money goes back.
"""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hourglass_local.http_client import RejectedError
from hourglass_local.plan import PAID_SOON, Pays, PlannedOrder, Then
from hourglass_local.shop import (
    CLOSED,
    COMPLETED,
    DECLINED,
    ORDER_CLOSED,
    PAID,
    Order,
    Payment,
    PaymentDesk,
    Shop,
    in_time,
)
from hourglass_local.waiting import eventually

PAYMENTS_MAX = 10  # a buyer whose payments are declined gives up after so many
TOLD_TIMEOUT_S, LOOK_INTERVAL_S = 60.0, 0.1
PART = 4  # a quarter goes back

_FROM_EXPIRY = frozenset({Pays.AT_EXPIRY, Pays.TOO_LATE})


@dataclass(frozen=True, slots=True)
class PaymentAttempt:
    """The answer to a buyer's payment, whatever became of it later; `payment` is None if the order had closed.

    `replayed`: a second request with the same key was answered with the first one's payment. `declined` is how many
    payments the gateway declined before that one.
    """

    planned: PlannedOrder
    payment: Payment | None
    replayed: bool = False
    declined: int = 0


class Buyers:
    """A context manager: its exit waits until all that was placed went as planned. Raises ShopError."""

    def __init__(self, shop: Shop, desk: PaymentDesk, count: int) -> None:
        self._shop = shop
        self._desk = desk
        self._count = count
        self._tasks = asyncio.TaskGroup()
        self.placed: dict[str, Order] = {}  # by order id, as they were placed
        self.attempts: dict[str, PaymentAttempt] = {}  # by order id
        self.cancelled: set[str] = set()  # ids of the orders that their buyers have cancelled
        self.endings = Endings(shop, desk)

    async def place(self, orders: Iterable[PlannedOrder]) -> None:
        """Return when all are placed; they are paid when their time comes."""
        waiting = iter(orders)
        await asyncio.gather(*(self._tasks.create_task(self._place(waiting)) for _ in range(self._count)))

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._tasks.__aexit__(kind, error, trace)
        except ExceptionGroup as group:
            raise group.exceptions[0] from group  # the first one that failed; the others were told to stop

    async def _place(self, waiting: Iterator[PlannedOrder]) -> None:
        for planned in waiting:
            order = await self._shop.place_order(planned.buyer_id, planned.items, planned.key)
            self.placed[order.order_id] = order
            if planned.pays is not Pays.NEVER:
                self._tasks.create_task(self._go_on(planned, order))

    async def _go_on(self, planned: PlannedOrder, order: Order) -> None:
        from_s = order.expires_at_ms / 1000 if planned.pays in _FROM_EXPIRY else time.time()
        await asyncio.sleep(from_s + planned.pay_after_ms / 1000 - time.time())
        if planned.pays is Pays.CANCELS:
            if await in_time(self._shop.cancel(order), CLOSED):
                self.cancelled.add(order.order_id)
            return
        attempt = await self._pay(planned, order)
        self.attempts[order.order_id] = attempt
        if planned.pays in PAID_SOON and attempt.payment is not None and attempt.payment.took_money:
            await self.endings.reach(planned.then, attempt.payment)

    async def _pay(self, planned: PlannedOrder, order: Order) -> PaymentAttempt:
        declined, replayed = 0, False
        while True:
            key = planned.payment_key(declined + 1)
            try:
                payment = (await self._desk.pay(order, key)).payment
            except RejectedError as error:
                if error.problem != ORDER_CLOSED:
                    raise
                return PaymentAttempt(planned, None, replayed, declined)
            if planned.pays is Pays.TWICE:
                second = await self._desk.pay(order, key)
                replayed = second.replayed and second.payment.payment_id == payment.payment_id
            if payment.status != DECLINED or declined + 1 == PAYMENTS_MAX:
                return PaymentAttempt(planned, payment, replayed, declined)
            declined += 1


class Deed(enum.Enum):
    """What was done, and answered."""

    SHIPPED = "shipped"
    CONFIRMED = "confirmed"
    CANCELLED = "cancelled"
    PARTLY_REFUNDED = "partly refunded"


class Endings:
    """Seller, operator, and the buyers with their goods. Raises ShopError."""

    def __init__(self, shop: Shop, desk: PaymentDesk) -> None:
        self._shop = shop
        self._desk = desk
        self.done: dict[str, set[Deed]] = {}  # by order id

    async def reach(self, then: Then, payment: Payment) -> None:
        """Wait until orders has heard of the payment, and do what `then` says, unless the order has closed before."""
        if then is Then.WAITS:
            return
        order = await self._told(payment)
        if order.status != PAID:
            return
        done = self.done.setdefault(order.order_id, set())
        if then is Then.CANCELLED:
            await self._shop.cancel_as_seller(order.order_id)
            done.add(Deed.CANCELLED)
            return
        await self._shop.ship(order.order_id)
        done.add(Deed.SHIPPED)
        if then is Then.RECEIVED:
            if await in_time(self._shop.confirm(order), COMPLETED):
                done.add(Deed.CONFIRMED)
        elif then is Then.PARTLY_REFUNDED:
            part = payment.amount_minor // PART
            await self._desk.refund(payment.payment_id, part, "scratched", f"{payment.payment_id}-part")
            done.add(Deed.PARTLY_REFUNDED)

    def ids(self, deed: Deed) -> set[str]:
        """Of the orders with which this was done."""
        return {order_id for order_id, done in self.done.items() if deed in done}

    async def _told(self, payment: Payment) -> Order:
        seen: list[Order] = []

        async def told() -> bool:
            seen[:] = [await self._shop.order(payment.order_id)]
            return seen[0].status in (PAID, CLOSED)

        await eventually(told, TOLD_TIMEOUT_S, f"orders knows payment {payment.payment_id}", interval_s=LOOK_INTERVAL_S)
        return seen[0]
