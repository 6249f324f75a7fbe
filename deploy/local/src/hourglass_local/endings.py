"""What becomes of an order after it was paid: the seller ships or cancels it, the buyer confirms, money goes back."""

from __future__ import annotations

import enum

from hourglass_local.payment_desk import Payment, PaymentDesk
from hourglass_local.plan import Then
from hourglass_local.shop import CLOSED, PAID, Order, Shop
from hourglass_local.waiting import eventually

TOLD_TIMEOUT_S, LOOK_INTERVAL_S = 60.0, 0.1
PART = 4  # a quarter goes back


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
            await self._shop.confirm(order)
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
