"""Orders and payments in one process, on one queue, with a clock that stands still: orders that end in every way.

shop.live()      # and then the databases say what shop.told, made into tables, must say as well
"""

from __future__ import annotations

from dataclasses import dataclass, field

from analytics.testing import BronzeRows
from orders.domain.product import Product
from orders.testing import BUYER, PRODUCT, SELLER, RunningOrders
from payments.testing import RunningPayments
from servicekit.message import OutgoingMessage
from servicekit.testing import RecordingPublisher, deliver

# What `live` leaves.
STATUSES = sorted(["PENDING_PAYMENT", *["CLOSED"] * 6, *["AWAITING_SHIPMENT"] * 2, "SHIPPED", *["COMPLETED"] * 2])


@dataclass(slots=True)
class RunningShop:
    """Orders and payments on one queue that remembers what it was told, and when."""

    orders: RunningOrders
    payments: RunningPayments
    queue: RecordingPublisher
    told: BronzeRows = field(default_factory=BronzeRows)
    waiting: list[OutgoingMessage] = field(default_factory=list)

    async def settle(self) -> None:
        """Deliver until nothing is under way but what waits."""
        groups = [*self.orders.application.subscriptions, *self.payments.application.subscriptions]
        while self.queue.messages:
            messages, self.queue.messages[:] = self.queue.messages[:], []
            for one in messages:
                stored_ms = self.orders.clock.wall_ms()
                self.told.tell(one.topic, one.tag, one.body, key=one.key, stored_ms=stored_ms)
            at_once = [one for one in messages if not one.delay_level and one.deliver_at_ms is None]
            self.waiting += [one for one in messages if one not in at_once]
            await deliver(at_once, groups)

    async def ring(self) -> None:
        """Let everything that waits arrive."""
        groups = [*self.orders.application.subscriptions, *self.payments.application.subscriptions]
        due, self.waiting = self.waiting, []
        await deliver(due, groups)
        await self.settle()

    async def place(self, name: str) -> str:
        order = await self.orders.place(name)
        await self.settle()
        return order.order_id

    async def pay(self, order_id: str) -> str:
        paid = await self.payments.pay(order_id, order_id)
        await self.settle()
        return paid.payment.payment_id

    async def live(self) -> None:
        """Orders that end in every way."""
        ship = self.orders.application.use_cases.ship_order
        await self.orders.add_product(Product(PRODUCT.product_id, "A seat", PRODUCT.price_minor, "CNY", 100))
        placed = {name: await self.place(name) for name in ("waits", "expires", "cancelled", "sold-out-by-seller")}
        await self.orders.cancel(placed["cancelled"])
        await self.orders.cancel(placed["sold-out-by-seller"], SELLER)
        paid = {}
        for name in ("paid", "taken-back", "part-back", "part-then-all", "shipped", "received", "completed"):
            placed[name] = await self.place(name)
            await self.orders.clock.advance(1.5)
            paid[name] = await self.pay(placed[name])
        await self.orders.cancel(placed["taken-back"], SELLER)
        await self.payments.refund_part(paid["part-back"], "k-1", 100)
        await self.payments.refund_part(paid["part-back"], "k-2", 50)
        await self.payments.refund_part(paid["part-then-all"], "k-3", 100)
        await self.settle()
        await self.orders.cancel(placed["part-then-all"], SELLER)
        for name in ("shipped", "received", "completed"):
            await ship(placed[name], SELLER)
        await self.orders.application.use_cases.confirm_receipt(placed["received"], BUYER)
        # Closed while its payment was under way.
        late = await self.place("late")
        await self.payments.pay(late, late)
        await self.orders.cancel(late)
        await self.settle()
        await self.orders.pass_payment_window()
        self.waiting = [one for one in self.waiting if one.key not in {placed["waits"], placed["shipped"]}]
        await self.ring()
        await self.orders.pass_completion_window()
        await self.ring()
