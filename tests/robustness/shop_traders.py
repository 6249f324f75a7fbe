"""Buyers, the seller and the operator of a round: they go on until they have an answer, whichever process is dead just
then.

A client without an answer asks again with the same key; after an answer that was lost, "it is closed already" may be
the answer to one's own request, and is no surprise.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shop_plan import Purchase, Way
from shop_truth import Truth

from hourglass_local.http_client import RejectedError
from hourglass_local.plan import Then
from hourglass_local.shop import CLOSED, DECLINED, PAID, Order, Payment, PaymentDesk, Shop
from hourglass_local.waiting import eventually

T = TypeVar("T")

TOLD_TIMEOUT_S, LOOK_INTERVAL_S = 120.0, 0.3
PAYMENTS_MAX = 4  # a buyer whose payments are declined gives up after so many
PART = 4
SOLD_OUT = frozenset({"insufficient-stock"})
CANNOT_BE_PAID = frozenset({"order-closed", "already-paid"})
OVERTAKEN = frozenset({"illegal-transition", "status-changed"})


class Traders:
    """What all of them do; what they are told is in `truth`. Raises ShopError when there is no answer for too long."""

    def __init__(self, shop: Shop, desk: PaymentDesk, truth: Truth) -> None:
        self._shop = shop
        self._desk = desk
        self._truth = truth

    async def trade(self, purchases: Sequence[Purchase], begun: Sequence[asyncio.Event]) -> None:
        """Returns when all are done; `begun` tells when each blow begins. Raises what they raise, in a group."""
        async with asyncio.TaskGroup() as tasks:
            for purchase in purchases:
                tasks.create_task(self._buy(purchase, begun[purchase.blow]))

    async def _buy(self, purchase: Purchase, begun: asyncio.Event) -> None:
        await begun.wait()
        await asyncio.sleep(purchase.at_s)
        order = await self._place(purchase)
        if order is None or purchase.way is Way.NEVER:
            return
        from_s = order.expires_at_ms / 1000 if purchase.way is Way.AT_EXPIRY else time.time()
        await asyncio.sleep(from_s + purchase.act_after_s - time.time())
        payments: list[Payment | None] = []
        if purchase.way is Way.CANCELS:
            await self._cancel(order)
        elif purchase.way is Way.CANCELS_WHILE_PAYING:
            payment, _ = await asyncio.gather(self._pay(order, purchase.key("payment")), self._cancel(order))
            payments = [payment]
        elif purchase.way is Way.DOUBLE_CLICKS:
            payments = await asyncio.gather(*(self._pay(order, purchase.key("payment")) for _ in range(2)))
        elif purchase.way is Way.TWO_TABS:
            payments = await asyncio.gather(*(self._pay(order, purchase.key(f"tab-{tab}")) for tab in range(2)))
        else:
            payments = [await self._pay(order, purchase.key("payment"))]
        if any(payment is not None and payment.took_money for payment in payments):
            await self._finish(purchase.then, order)

    async def _place(self, purchase: Purchase) -> Order | None:
        async def place() -> Order:
            return await self._shop.place_order(purchase.buyer_id, purchase.items, purchase.key("order"))

        clicks = 2 if purchase.way is Way.DOUBLE_CLICKS else 1
        answers = await asyncio.gather(*(self._unless(SOLD_OUT, place) for _ in range(clicks)))
        orders = [order for order in answers if order is not None]
        for order in orders:
            self._truth.order(purchase.buyer_id, purchase.key("order"), order)
        return orders[0] if orders else None

    async def _pay(self, order: Order, key: str) -> Payment | None:
        for number in range(PAYMENTS_MAX):

            async def pay(key: str = f"{key}-{number}") -> Payment:
                return (await self._desk.pay(order, key)).payment

            payment = await self._unless(CANNOT_BE_PAID, pay)
            if payment is None:
                return None
            self._truth.payment(payment)
            if payment.status != DECLINED:
                return payment
        return None

    async def _cancel(self, order: Order) -> None:
        if await self._unless(OVERTAKEN, lambda: self._shop.cancel(order)) is not None:
            self._truth.cancelled.add(order.order_id)

    async def _finish(self, then: Then, order: Order) -> None:
        """Seller, buyer and operator go on with what was paid, unless it has closed."""
        if then is Then.WAITS or not await self._is_told(order):
            return
        order_id = order.order_id
        if then is Then.CANCELLED:
            if await self._unless(OVERTAKEN, lambda: self._shop.cancel_as_seller(order_id)) is not None:
                self._truth.cancelled.add(order_id)
            return
        if await self._unless(OVERTAKEN, lambda: self._shop.ship(order_id)) is not None:
            self._truth.shipped.add(order_id)
        if then is Then.RECEIVED and await self._unless(OVERTAKEN, lambda: self._shop.confirm(order)) is not None:
            self._truth.confirmed.add(order_id)
        elif then is Then.PARTLY_REFUNDED:
            await self._refund_a_part(order_id)

    async def _refund_a_part(self, order_id: str) -> None:
        payment_id = (await self._shop.order(order_id)).payment_id
        if payment_id is None:
            raise AssertionError(f"order {order_id} was paid and names no payment")
        payment = await self._desk.payment(payment_id, self._desk.badges.operator)
        part = payment.amount_minor // PART
        refund = await self._desk.refund(payment_id, part, "scratched", f"{payment_id}-part")
        self._truth.refunded[refund.refund_id] = part

    async def _is_told(self, order: Order) -> bool:
        """Wait until orders knows that it is paid, or has closed it."""
        statuses: list[str] = []

        async def told() -> bool:
            statuses[:] = [(await self._shop.order(order.order_id)).status]
            return statuses[0] in (PAID, CLOSED)

        await eventually(told, TOLD_TIMEOUT_S, f"order {order.order_id} is paid or closed", interval_s=LOOK_INTERVAL_S)
        return statuses[0] == PAID

    async def _unless(self, expected: frozenset[str], ask: Callable[[], Awaitable[T]]) -> T | None:
        """The answer, or None when it was one of these rejections; another rejection is on record as wrong."""
        try:
            return await ask()
        except RejectedError as error:
            self._truth.rejections[error.problem] += 1
            if error.problem not in expected:
                self._truth.wrong.append(str(error))
            return None
