"""The buyers: they carry out a plan side by side, with the seller and the operator, and keep what they were told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hourglass_local.endings import Endings
from hourglass_local.http_client import RefusedError
from hourglass_local.payment_desk import DECLINED, ORDER_CLOSED, Payment, PaymentDesk
from hourglass_local.plan import PAID_SOON, Pays, PlannedOrder
from hourglass_local.shop import Order, Shop

PAYMENTS_MAX = 10  # a buyer whose payments are declined gives up after so many
_FROM_EXPIRY = frozenset({Pays.AT_EXPIRY, Pays.TOO_LATE})


@dataclass(frozen=True, slots=True)
class PaymentAttempt:
    """What a buyer was told when he paid, whatever became of it later; `payment` is None if the order had closed.

    `replayed` says that he asked a second time with the same key, and was told of the first time's payment. `declined`
    is how many payments the gateway declined before that one.
    """

    planned: PlannedOrder
    payment: Payment | None
    replayed: bool = False
    declined: int = 0


class Buyers:
    """A context manager: whoever leaves it waits until all that was placed went as planned. Raises ShopError."""

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
            raise group.exceptions[0] from group  # the first one who failed; the others were told to stop

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
            await self._shop.cancel(order)
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
            except RefusedError as error:
                if error.problem != ORDER_CLOSED:
                    raise
                return PaymentAttempt(planned, None, replayed, declined)
            if planned.pays is Pays.TWICE:
                second = await self._desk.pay(order, key)
                replayed = second.replayed and second.payment.payment_id == payment.payment_id
            if payment.status != DECLINED or declined + 1 == PAYMENTS_MAX:
                return PaymentAttempt(planned, payment, replayed, declined)
            declined += 1
