"""The invariants over the real services: orders, payments and the gateway on one clock, with one queue between them.

After every step of a day in the shop nothing may be wrong; in the end nothing may be unfinished either.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from hourglass_invariants import Sources, check
from orders.domain.order import Order
from orders.testing import BUYER, PRODUCT, SELLER, RunningOrders, running_orders
from osenv import SimClock
from payments.adapters.http_gateway import HttpGateway
from payments.domain.payment import PaymentMethod, PaymentRequest
from payments.testing import RunningPayments, running_payments
from sandbox_gateway.domain.failures import Failures
from sandbox_gateway.testing import API_KEY, URL, RunningGateway, running_gateway
from servicekit.message import OutgoingMessage
from servicekit.testing import RecordingPublisher, deliver
from servicekit.testing.databases import NewDatabaseUrl

STOCK = {PRODUCT.product_id: PRODUCT.available}


@dataclass
class Webhooks:
    """Carries the gateway's webhooks to payments, unless payments is away."""

    post: Callable[[bytes], Awaitable[object]] | None = None
    is_away: bool = False

    async def deliver(self, body: bytes) -> None:
        if self.post is not None and not self.is_away:
            await self.post(body)


@dataclass
class Shop:
    """Everything that runs, and its hands."""

    sources: Sources
    clock: SimClock
    queue: RecordingPublisher
    orders: RunningOrders
    payments: RunningPayments
    gateway: RunningGateway
    webhooks: Webhooks
    delayed: list[OutgoingMessage] = field(default_factory=list)

    async def settle(self) -> None:
        """Webhooks and messages go their ways; nothing may be wrong before, between and after."""
        for _ in range(6):
            await self.is_healthy()
            await self.deliver()
            await self.gateway.pass_time(1)

    async def deliver(self) -> None:
        self.delayed += [one for one in self.queue.messages if one.delay_level or one.deliver_at_ms]
        self.queue.messages[:] = [one for one in self.queue.messages if one not in self.delayed]
        subscriptions = [*self.orders.application.subscriptions, *self.payments.application.subscriptions]
        await deliver(self.queue.messages, [one for one in subscriptions if not one.is_broadcasting])

    async def ring(self) -> None:
        """The delayed messages come back."""
        self.queue.messages += [OutgoingMessage(one.topic, one.tag, one.key, one.body) for one in self.delayed]
        self.delayed.clear()
        await self.settle()

    async def is_healthy(self) -> None:
        found = await check(self.sources, self.clock.wall_ms(), stock=STOCK)
        assert found == [], [str(violation) for violation in found]

    async def is_finished(self) -> None:
        found = await check(self.sources, self.clock.wall_ms(), stock=STOCK, grace_ms=0)
        assert found == [], [str(violation) for violation in found]

    async def place(self, key: str) -> Order:
        order = await self.orders.place(key)
        await self.settle()
        return order

    async def begin_payment(self, order: Order) -> str:
        request = PaymentRequest(order.order_id, order.buyer_id, order.total_minor, order.currency, PaymentMethod.CARD)
        paid = await self.payments.application.use_cases.pay_order(request, f"pay-{order.order_id}")
        return paid.payment.payment_id

    async def place_and_pay(self, key: str) -> tuple[Order, str]:
        order = await self.place(key)
        payment_id = await self.begin_payment(order)
        await self.settle()
        return order, payment_id


@pytest.fixture
async def shop(new_database_url: NewDatabaseUrl) -> AsyncIterator[Shop]:
    clock, queue, webhooks = SimClock(), RecordingPublisher(), Webhooks()
    urls = {name: new_database_url(name) for name in ("orders", "payments", "gateway")}
    async with running_gateway(urls["gateway"], receiver=webhooks, clock=clock) as gateway:
        port = HttpGateway(URL, API_KEY, gateway.transport)
        async with (
            running_payments(urls["payments"], gateway=port, queue=queue, clock=clock) as payments,
            running_orders(urls["orders"], publisher=queue, clock=clock) as orders,
        ):
            webhooks.post = payments.signed
            await orders.add_product()
            yield Shop(Sources(**urls), clock, queue, orders, payments, gateway, webhooks)
        await port.close()


async def test_orders_of_every_fate_leave_nothing_wrong_and_nothing_unfinished(shop: Shop) -> None:
    use_cases = shop.orders.application.use_cases
    await shop.is_finished()
    received, _ = await shop.place_and_pay("received")
    await use_cases.ship_order(received.order_id, SELLER)
    await shop.settle()
    await use_cases.confirm_receipt(received.order_id, BUYER)
    await shop.settle()
    sold, payment_id = await shop.place_and_pay("goodwill")
    await shop.payments.refund_part(payment_id, "goodwill", 100)
    await shop.settle()
    by_seller, _ = await shop.place_and_pay("by-seller")
    await shop.orders.cancel(by_seller.order_id, SELLER)
    await shop.settle()
    by_buyer = await shop.place("by-buyer")
    await shop.orders.cancel(by_buyer.order_id)
    await shop.settle()
    shop.gateway.application.behaviour.failures = Failures(declined=1.0)
    declined, _ = await shop.place_and_pay("declined")
    shop.gateway.application.behaviour.failures = Failures()
    await shop.orders.pass_payment_window()
    await shop.ring()
    await shop.is_finished()
    fates = {order.order_id: (await shop.orders.order(order.order_id)).status for order in (received, sold, by_seller)}
    assert list(fates.values()) == ["COMPLETED", "AWAITING_SHIPMENT", "CLOSED"]
    assert (await shop.orders.order(declined.order_id)).status == "CLOSED"
    statuses = sorted(payment.status for payment in await shop.payments.payments())
    assert statuses == ["CAPTURED", "DECLINED", "PARTIALLY_REFUNDED", "REFUNDED"]


async def test_money_that_is_captured_when_its_order_has_closed_goes_back(shop: Shop) -> None:
    """The buyer pays half a minute before the expiry, and the gateway takes a minute."""
    order = await shop.place("late")
    await shop.clock.advance((order.expires_at_ms - shop.clock.wall_ms()) / 1000 - 30)
    shop.gateway.application.behaviour.delay_ms = 60_000
    payment_id = await shop.begin_payment(order)
    await shop.clock.advance(30)
    await shop.ring()
    assert (await shop.orders.order(order.order_id)).status == "CLOSED"
    for _ in range(2):  # the capture, and the refund
        await shop.gateway.pass_time(60)
        await shop.settle()
    await shop.is_finished()
    assert (await shop.payments.payment(payment_id)).status == "REFUNDED"


async def test_a_refund_request_that_nobody_hears_is_found(shop: Shop) -> None:
    order, payment_id = await shop.place_and_pay("by-seller")
    await shop.orders.cancel(order.order_id, SELLER)
    lost = [one for one in shop.queue.messages if one.tag == "refund-requested"]
    shop.queue.messages[:] = [one for one in shop.queue.messages if one not in lost]
    await shop.settle()
    found = await check(shop.sources, shop.clock.wall_ms() + 120_000, stock=STOCK)
    assert [(violation.check, violation.row["payment_id"]) for violation in found] == [
        ("refund_requests_are_heard", payment_id)
    ]


async def test_a_webhook_that_never_comes_and_that_nobody_asks_about_is_found(shop: Shop) -> None:
    order = await shop.place("unheard")
    shop.webhooks.is_away = True
    await shop.begin_payment(order)
    await shop.gateway.pass_time(1)
    found = await check(shop.sources, shop.clock.wall_ms() + 120_000, stock=STOCK)
    assert {violation.check for violation in found} == {"gateway_book_is_the_ledger", "stuck_payments"}


async def test_an_order_that_nobody_closes_is_found(shop: Shop) -> None:
    order = await shop.place("forgotten")
    await shop.orders.pass_payment_window()
    found = await check(shop.sources, shop.clock.wall_ms() + 120_000, stock=STOCK)
    assert [(violation.check, violation.row["order_id"]) for violation in found] == [("stuck_orders", order.order_id)]
