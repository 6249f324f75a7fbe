"""The invariants over the real services: orders, payments and the gateway on one clock, with one queue between them.

After every step of a day in the shop nothing may be wrong; in the end nothing may be unfinished either.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import httpx
import pytest

from hourglass_invariants import Sources, check
from orders.adapters.outside import HttpPayments
from orders.domain.order import Order
from orders.testing import AUTH_KEYS, BUYER, PRODUCT, SELLER, RunningOrders, running_orders
from osenv import SimClock
from payments.adapters.http_gateway import HttpGateway
from payments.domain.payment import PaymentMethod, PaymentRequest
from payments.testing import RunningPayments, running_payments
from sandbox_gateway.domain import Failures
from sandbox_gateway.testing import API_KEY, URL, RunningGateway, running_gateway
from servicekit.auth import Tokens
from servicekit.message import OutgoingMessage
from servicekit.process.reconciler import Reconciled
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

    async def settle(self, *, is_healthy: bool = True) -> None:
        """Webhooks and messages go their ways; nothing may be wrong before, between and after, if it was healthy."""
        for _ in range(6):
            if is_healthy:
                await self.is_healthy()
            await self.deliver()
            await self.gateway.pass_time(1)

    async def deliver(self) -> None:
        self.delayed += [one for one in self.queue.messages if one.delay_level or one.deliver_at_ms]
        self.queue.messages[:] = [one for one in self.queue.messages if one not in self.delayed]
        subscriptions = [*self.orders.application.subscriptions, *self.payments.application.subscriptions]
        await deliver(self.queue.messages, [one for one in subscriptions if not one.is_broadcasting])

    async def ring(self, *, is_healthy: bool = True) -> None:
        """The delayed messages come back."""
        self.queue.messages += [OutgoingMessage(one.topic, one.tag, one.key, one.body) for one in self.delayed]
        self.delayed.clear()
        await self.settle(is_healthy=is_healthy)

    async def is_healthy(self) -> None:
        found = await check(self.sources, self.clock.wall_ms(), stock=STOCK)
        assert found == [], [str(violation) for violation in found]

    async def is_finished(self) -> None:
        found = await check(self.sources, self.clock.wall_ms(), stock=STOCK, grace_ms=0)
        assert found == [], [str(violation) for violation in found]

    def lose(self, *tags: str) -> None:
        """The broker has lost what was just told."""
        self.queue.messages[:] = [one for one in self.queue.messages if one.tag not in tags]

    async def reconcile(self) -> None:
        """What is out of step has been so for a minute and more; each reconciler makes a round, and messages go."""
        await self.clock.advance(61)
        for _ in range(2):
            await self.orders.application.reconciler.round()
            await self.payments.application.reconciler.round()
            await self.settle(is_healthy=False)

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
            AsyncExitStack() as stack,
        ):
            transport = httpx.ASGITransport(payments.application.api)
            desk = HttpPayments("http://payments", Tokens(AUTH_KEYS, clock), clock, transport=transport)
            stack.push_async_callback(desk.close)
            orders = await stack.enter_async_context(
                running_orders(urls["orders"], publisher=queue, clock=clock, payment_desk=desk)
            )
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


async def test_an_unheard_refund_request_is_found(shop: Shop) -> None:
    order, payment_id = await shop.place_and_pay("by-seller")
    await shop.orders.cancel(order.order_id, SELLER)
    lost = [one for one in shop.queue.messages if one.tag == "refund-requested"]
    shop.queue.messages[:] = [one for one in shop.queue.messages if one not in lost]
    await shop.settle()
    found = await check(shop.sources, shop.clock.wall_ms() + 120_000, stock=STOCK)
    assert [(violation.check, violation.row["payment_id"]) for violation in found] == [
        ("refund_requests_are_heard", payment_id)
    ]


async def test_a_webhook_that_never_comes_and_is_never_asked_about_is_found(shop: Shop) -> None:
    order = await shop.place("unheard")
    shop.webhooks.is_away = True
    await shop.begin_payment(order)
    await shop.gateway.pass_time(1)
    found = await check(shop.sources, shop.clock.wall_ms() + 120_000, stock=STOCK)
    assert {violation.check for violation in found} == {"gateway_book_is_the_ledger", "stuck_payments"}


async def test_an_order_that_is_never_closed_is_found(shop: Shop) -> None:
    order = await shop.place("forgotten")
    await shop.orders.pass_payment_window()
    found = await check(shop.sources, shop.clock.wall_ms() + 120_000, stock=STOCK)
    assert [(violation.check, violation.row["order_id"]) for violation in found] == [("stuck_orders", order.order_id)]


async def what_is_wrong(shop: Shop) -> set[str]:
    """The checks that find something when everything has had its time."""
    found = await check(shop.sources, shop.clock.wall_ms() + 120_000, stock=STOCK)
    return {violation.check for violation in found}


async def test_captures_whose_events_were_parked_while_their_orders_closed_go_back(shop: Shop) -> None:
    """The database did not answer for fifteen checks, and the queue has given all seven transactions up."""
    orders = [await shop.place(f"k-{number}") for number in range(7)]
    shop.queue.loses_ends = True
    payments = [await shop.begin_payment(order) for order in orders]
    await shop.gateway.pass_time(1)
    shop.queue.park()
    shop.queue.loses_ends = False
    assert len(shop.queue.parked) == 7
    await shop.orders.pass_payment_window()
    await shop.ring(is_healthy=False)
    assert [(await shop.payments.payment(payment_id)).status for payment_id in payments] == ["CAPTURED"] * 7
    assert await what_is_wrong(shop) == {"captures_pay_or_go_back"}
    await shop.reconcile()
    await shop.is_finished()
    assert [(await shop.payments.payment(payment_id)).status for payment_id in payments] == ["REFUNDED"] * 7
    assert shop.queue.parked == {}


async def test_an_order_whose_event_was_parked_can_be_paid(shop: Shop) -> None:
    shop.queue.loses_ends = True
    order = await shop.place("k")
    shop.queue.park()
    shop.queue.loses_ends = False
    assert await what_is_wrong(shop) == {"payments_know_the_orders"}
    await shop.reconcile()
    await shop.begin_payment(order)
    await shop.settle()
    assert (await shop.orders.order(order.order_id)).status == "AWAITING_SHIPMENT"
    await shop.is_finished()


@pytest.mark.parametrize(
    ("lost", "wrong", "becomes"),
    [
        ("succeeded", {"captures_pay_or_go_back"}, "AWAITING_SHIPMENT"),
        ("paid", {"payments_know_the_orders"}, "AWAITING_SHIPMENT"),
    ],
)
async def test_an_event_of_a_payment_that_was_lost_is_told_again(
    shop: Shop, lost: str, wrong: set[str], becomes: str
) -> None:
    order = await shop.place("k")
    await shop.begin_payment(order)
    await shop.gateway.pass_time(1)
    for _ in range(3):
        shop.lose(lost)
        await shop.deliver()
    assert await what_is_wrong(shop) == wrong
    await shop.reconcile()
    assert (await shop.orders.order(order.order_id)).status == becomes
    await shop.is_finished()


async def test_money_goes_back_although_both_its_event_and_the_end_of_its_order_were_lost(shop: Shop) -> None:
    order = await shop.place("k")
    payment_id = await shop.begin_payment(order)
    await shop.gateway.pass_time(1)
    shop.lose("succeeded")
    await shop.orders.pass_payment_window()
    shop.queue.messages += [OutgoingMessage(one.topic, one.tag, one.key, one.body) for one in shop.delayed]
    await shop.deliver()
    shop.lose("closed")
    assert await what_is_wrong(shop) == {"captures_pay_or_go_back", "payments_know_the_orders"}
    await shop.reconcile()
    await shop.is_finished()
    assert (await shop.payments.payment(payment_id)).status == "REFUNDED"


async def test_a_refund_request_that_was_lost_is_made_by_payments_itself(shop: Shop) -> None:
    order, payment_id = await shop.place_and_pay("by-seller")
    await shop.orders.cancel(order.order_id, SELLER)
    shop.lose("refund-requested")
    await shop.settle(is_healthy=False)
    assert await what_is_wrong(shop) == {"refund_requests_are_heard"}
    await shop.reconcile()
    await shop.is_finished()
    assert (await shop.payments.payment(payment_id)).status == "REFUNDED"


async def test_orders_whose_timers_were_lost_end(shop: Shop) -> None:
    """One was never paid, one was paid in time by an event that was lost too, one was shipped."""
    unpaid, paid = await shop.place("unpaid"), await shop.place("paid")
    shipped, _ = await shop.place_and_pay("shipped")
    await shop.orders.application.use_cases.ship_order(shipped.order_id, SELLER)
    await shop.begin_payment(paid)
    await shop.gateway.pass_time(1)
    shop.lose("succeeded")
    await shop.settle(is_healthy=False)
    shop.delayed.clear()
    await shop.orders.pass_payment_window()
    await shop.orders.pass_completion_window()
    assert await what_is_wrong(shop) == {"stuck_orders", "stuck_shipments", "captures_pay_or_go_back"}
    await shop.reconcile()
    fates = [(await shop.orders.order(one.order_id)).status for one in (unpaid, paid, shipped)]
    assert fates == ["CLOSED", "AWAITING_SHIPMENT", "COMPLETED"]
    await shop.is_finished()


async def test_two_instances_that_reconcile_at_once_and_again_move_nothing_twice(shop: Shop) -> None:
    orders = [await shop.place(f"k-{number}") for number in range(5)]
    payments = [await shop.begin_payment(order) for order in orders]
    await shop.gateway.pass_time(1)
    shop.lose("succeeded")
    await shop.orders.pass_payment_window()
    await shop.ring(is_healthy=False)
    await shop.clock.advance(61)
    async with running_payments(
        shop.sources.payments, gateway=shop.payments.gateway, queue=shop.queue, clock=shop.clock, seed=2
    ) as second:
        for _ in range(2):
            await asyncio.gather(
                *(one.application.reconciler.round() for one in (shop.payments, second)),
                shop.orders.application.reconciler.round(),
            )
        await shop.settle()
        await second.application.reconciler.round()
        assert shop.queue.messages == []
    await shop.is_finished()
    for payment_id in payments:
        (refund,) = await shop.payments.refunds_of(payment_id)
        assert (refund.status, refund.amount_minor) == ("REFUNDED", 15800)


async def test_a_dry_run_says_what_is_wrong_and_changes_nothing(shop: Shop) -> None:
    order = await shop.place("k")
    payment_id = await shop.begin_payment(order)
    await shop.gateway.pass_time(1)
    shop.lose("succeeded")
    await shop.clock.advance(61)
    reconciler = shop.payments.application.reconciler
    found = await reconciler.reconcile(is_dry_run=True)
    assert found.errors == ()
    assert found.found == (
        f"payment {payment_id} of order {order.order_id} is CAPTURED, and the order neither paid nor closed:"
        " tell orders",
    )
    assert shop.queue.messages == []
    await shop.reconcile()
    assert await shop.orders.application.reconciler.reconcile(is_dry_run=True) == Reconciled((), ())
    assert await reconciler.reconcile(is_dry_run=True) == Reconciled((), ())
