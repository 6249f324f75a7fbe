"""Pay, hold and pay, pay after the hold, expire, cancel, cancel as the seller, ship and refund, in every order in which
their steps can meet.

Each use case is cut at its read and at its write; one that loses and reads again is cut there too. Orders that differ
only in the order of reads which follow each other are one. All of them run on units in memory, and each 97th of them
on a database, where it has to come to the same end.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from orders.adapters.sql import SqlUnitOfWork
from orders.app import MIGRATIONS
from orders.domain.errors import (
    IllegalTransitionError,
    OrderHeldError,
    OrderNotPayableError,
    PaymentNotHeardOfError,
    StatusChangedError,
)
from orders.domain.order import (
    TRANSITIONS,
    ChangeReason,
    HoldLimits,
    Order,
    OrderLine,
    OrderStatus,
    Origin,
    Payment,
    RefundedPayment,
    place,
)
from orders.domain.product import Product
from orders.pages.testing import ScriptedDesk
from orders.service.close_order import AcceptRefund, CloseOrder, ExpiryOutcome, LatePayments, RefundOutcome
from orders.service.payments import IN_PROGRESS, AcceptPayment, HoldOrder, PaymentOutcome, PaymentView
from orders.service.status_commands import ShipOrder
from orders.service.use_case import UnitOfWork, Units
from orders.testing import BUYER, SELLER, MemoryState, MemoryUnits
from osenv import SimClock
from servicekit.sql.database import Database, SqlUnits
from servicekit.sql.units import KeyClaim, TransactionalPublisher
from servicekit.testing import RecordingPublisher
from servicekit.testing.databases import NewDatabaseUrl
from servicekit.testing.interleavings import Choices, Stage, SteppedUnits, every_choice

REASON_OF = {
    "cancel": ChangeReason.CANCELLED,
    "expire": ChangeReason.EXPIRED,
    "hold and pay": ChangeReason.PAID,
    "pay": ChangeReason.PAID,
    "pay again": ChangeReason.PAID,  # the same payment, delivered twice
    "pay late": ChangeReason.PAID,  # its hold is over before the gateway decides
    "pay twice": ChangeReason.PAID,  # another payment for the same order
    "refunded": ChangeReason.REFUNDED,  # all money of the payment has gone back
    "seller-cancel": ChangeReason.SELLER_CANCELLED,
    "ship": ChangeReason.SHIPPED,
}
PAYMENT_OF = {"pay": "1", "pay again": "1", "pay twice": "2", "hold and pay": "1", "pay late": "1"}
REFUND_REASONS = {
    OrderStatus.PENDING_PAYMENT: set(),
    OrderStatus.AWAITING_SHIPMENT: {"already-paid"},
    OrderStatus.SHIPPED: {"already-paid"},
    OrderStatus.CLOSED: {"already-paid", "order-closed", "order-cancelled"},
}
STOCK, UNITS = 5, 2


class Shop:
    """The use cases over units that can be stepped, and one order at a time that is due and unpaid."""

    def __init__(self, units: Units) -> None:
        self.units: SteppedUnits[UnitOfWork] = SteppedUnits(units)
        self.queue = RecordingPublisher()
        self.clock = SimClock()
        # A hold is taken a moment before the order is due: all others come afterwards.
        earlier = SimClock(wall_ms=self.clock.wall_ms() - 1)
        self.hold_order = HoldOrder(self.units, earlier, HoldLimits())
        self.hold_briefly = HoldOrder(self.units, earlier, HoldLimits(lifetime_ms=0))
        transactions: TransactionalPublisher[UnitOfWork] = TransactionalPublisher(self.units, self.queue, self.clock)
        self.accept_payment = AcceptPayment(self.units, transactions, self.clock)
        self.desk = ScriptedDesk(self.clock)
        late_payment = LatePayments(self.desk, self.accept_payment)
        self.close_order = CloseOrder(self.units, transactions, self.clock, late_payment=late_payment)
        self.accept_refund = AcceptRefund(self.units, self.close_order, self.clock)
        self.ship_order = ShipOrder(self.units, transactions, self.clock)

    async def place(self, number: int) -> Order:
        product = Product(f"product-{number}", "A seat", 100, "CNY", available=STOCK)
        lines = (OrderLine(product.product_id, UNITS, product.price_minor),)
        origin = Origin(BUYER.subject, self.clock.wall_ms())
        order, first = place(f"order-{number}", BUYER.subject, lines, "CNY", origin, payment_window_ms=0)
        async with self.units.writing() as unit:
            await unit.products.add(product)
            claim = KeyClaim(BUYER.subject, order.order_id, "fingerprint", order.order_id)
            assert not await unit.orders.place(order, first, claim)
            await unit.commit()
        return order

    def contender(self, name: str, order: Order) -> Coroutine[Any, Any, object]:
        order_id = order.order_id
        if name in PAYMENT_OF:
            payment = Payment(payment_of(name, order), order_id, order.total_minor, "CNY", self.clock.wall_ms())
            ways = {"hold and pay": self.hold_and_pay, "pay late": self.pay_late}
            return ways.get(name, self.accept_payment)(payment)
        coroutines: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "cancel": lambda: self.close_order.cancel(order_id, BUYER),
            "expire": lambda: self.close_order.expire(order_id),
            "refunded": lambda: self.accept_refund(
                RefundedPayment(payment_of("pay", order), order_id, order.total_minor)
            ),
            "seller-cancel": lambda: self.close_order.cancel(order_id, SELLER),
            "ship": lambda: self.ship_order(order_id, SELLER),
        }
        return coroutines[name]()

    async def hold_and_pay(self, payment: Payment) -> PaymentOutcome | OrderNotPayableError:
        """As payments does it: without a hold nothing is charged, and no payment arrives."""
        try:
            await self.hold_order.take(payment.order_id, payment.payment_id, BUYER)
        except OrderNotPayableError as error:
            return error
        return await self.accept_payment(payment)

    async def pay_late(self, payment: Payment) -> PaymentOutcome | OrderNotPayableError:
        """The gateway decides when the hold is over; who asks payments is told so, before the message comes."""
        try:
            await self.hold_briefly.take(payment.order_id, payment.payment_id, BUYER)
        except OrderNotPayableError as error:
            return error
        view = PaymentView(
            payment_id=payment.payment_id,
            order_id=payment.order_id,
            amount_minor=payment.amount_minor,
            refunded_minor=0,
            currency=payment.currency,
            method="card",
            status=IN_PROGRESS,
            created_at_ms=self.clock.wall_ms(),
            captured_at_ms=None,
            decline_reason=None,
        )
        self.desk.payments[payment.payment_id] = view
        async with self.units.writing():  # a step in which the others go on
            self.desk.payments[payment.payment_id] = replace(view, status="CAPTURED", captured_at_ms=payment.paid_at_ms)
        return await self.accept_payment(payment)

    async def race(self, order: Order, names: tuple[str, ...], choices: Choices) -> dict[str, object] | None:
        """What the contenders returned or raised; None for a schedule that another one stands for."""
        self.desk.payments.clear()
        self.units.stage = Stage(choices)
        results = await self.units.stage.run({name: self.contender(name, order) for name in names})
        self.units.stage = None
        return results

    async def check(self, order: Order, results: dict[str, object]) -> tuple[ChangeReason, ...]:
        """Exactly one winner of each state, the right thing by each loser, and the money where it belongs."""
        async with self.units.snapshot() as unit:
            final = await unit.orders.get(order.order_id)
            history = await unit.orders.history(order.order_id)
            product_id = order.lines[0].product_id
            product = (await unit.products.find([product_id]))[product_id]
        reasons = [change.reason for change in history][1:]
        # Each state that the order has left was left once, and each contender who says so is in the history.
        assert len(history) == final.version
        for before, after in pairwise(history):
            assert after.old_status is before.new_status
            assert TRANSITIONS[before.new_status, after.reason] is after.new_status
        assert history[-1].new_status is final.status
        winners = {name for name, result in results.items() if has_won(result)}
        if ChangeReason.PAID in reasons and isinstance(results.get("pay late"), PaymentOutcome):
            winners.add("pay late")  # itself, or the timer that has asked for it
        assert Counter(reasons) == Counter(REASON_OF[name] for name in winners)
        assert all(is_right_for_a_loser(name, result) for name, result in results.items() if name not in winners)
        assert reasons, "the order was not decided"
        places = {OrderStatus.CLOSED: (STOCK, 0, 0)}
        stock = product.available, product.reserved, product.sold
        assert stock == places.get(final.status, (STOCK - UNITS, 0, UNITS))
        arrived = {name for name, result in results.items() if isinstance(result, PaymentOutcome)}
        self.check_messages(final, reasons, {payment_of(name, order) for name in arrived})
        # The payment that holds the order gets it: no money is taken for an order that closes under the payment's
        # hands.
        assert results.get("hold and pay") is not PaymentOutcome.REFUND_REQUESTED
        # Nor does it expire while payments may have the money; only people close it once the hold is over.
        assert ChangeReason.EXPIRED not in reasons or not isinstance(results.get("pay late"), PaymentOutcome)
        self.queue.messages.clear()
        return tuple(reasons)

    def forget_messages(self) -> None:
        self.queue.messages.clear()
        self.queue.halves.clear()

    def check_messages(self, final: Order, reasons: list[ChangeReason], payments: set[str]) -> None:
        assert self.queue.halves == {}
        told = Counter(message.tag for message in self.queue.messages)
        assert told["closed"] == (final.status is OrderStatus.CLOSED)
        assert told["paid"] == (ChangeReason.PAID in reasons)
        assert told["shipped"] == (ChangeReason.SHIPPED in reasons)
        # Exactly one refund for each payment that arrived and does not pay for an order that is kept.
        refunds = [json.loads(message.body) for message in self.queue.taken("order-events", "refund-requested")]
        is_kept = final.status is not OrderStatus.CLOSED or reasons[-1] is ChangeReason.REFUNDED
        kept = {final.payment_id} if is_kept else set()
        assert sorted(refund["payment_id"] for refund in refunds) == sorted(payments - kept)
        for refund in refunds:
            assert refund["amount_minor"] == final.total_minor
            assert (refund["reason"] == "order-cancelled") == (refund["payment_id"] == final.payment_id)
            assert refund["reason"] in REFUND_REASONS[final.status]


def payment_of(name: str, order: Order) -> str:
    return f"{order.order_id}-payment-{PAYMENT_OF[name]}"


def has_won(result: object) -> bool:
    return isinstance(result, Order) or result in (PaymentOutcome.PAID, ExpiryOutcome.CLOSED, RefundOutcome.CLOSED)


def is_right_for_a_loser(name: str, result: object) -> bool:
    """What has lost says so: a person by an error, a message by an outcome that ends it."""
    if name == "hold and pay":
        return isinstance(result, OrderNotPayableError)
    if name == "pay late":
        return isinstance(result, OrderNotPayableError | PaymentOutcome)
    if name == "refunded":
        return isinstance(result, PaymentNotHeardOfError) or result is RefundOutcome.KEPT
    if name in PAYMENT_OF:
        return isinstance(result, PaymentOutcome)
    if name == "expire":
        return result in {ExpiryOutcome.ALREADY_DECIDED, ExpiryOutcome.HELD}
    return isinstance(result, StatusChangedError | IllegalTransitionError | OrderHeldError)


RACES: dict[tuple[str, ...], set[tuple[str, ...]]] = {
    ("cancel", "expire", "pay", "seller-cancel", "ship"): {
        ("expired",),
        ("cancelled",),
        ("seller-cancelled",),
        ("paid",),
        ("paid", "shipped"),
        ("paid", "seller-cancelled"),
    },
    ("expire", "pay", "pay again", "pay twice"): {("expired",), ("paid",)},
    ("pay", "pay twice", "seller-cancel", "ship"): {
        ("seller-cancelled",),
        ("paid",),
        ("paid", "shipped"),
        ("paid", "seller-cancelled"),
    },
}
RACES[("cancel", "expire", "hold and pay", "seller-cancel", "ship")] = RACES[
    ("cancel", "expire", "pay", "seller-cancel", "ship")
]
RACES[("cancel", "expire", "pay late")] = {("expired",), ("cancelled",), ("paid",)}
RACES[("pay", "pay twice", "refunded", "ship")] = {
    ("paid",),
    ("paid", "shipped"),
    ("paid", "refunded"),
}
each_race = pytest.mark.parametrize("names", RACES, ids="+".join)


@pytest.mark.mechanism("X1")
@each_race
async def test_one_wins_each_state_in_every_interleaving(
    names: tuple[str, ...], record_property: Callable[[str, str], None]
) -> None:
    units = MemoryUnits()
    shop = Shop(units)
    order = await shop.place(1)
    placed = units.state
    ends: Counter[tuple[ChangeReason, ...]] = Counter()
    for choices in every_choice():
        units.state = placed.copy()
        results = await shop.race(order, names, choices)
        if results is not None:
            ends[await shop.check(order, results)] += 1
        shop.forget_messages()
    assert set(ends) == RACES[names]  # every end that there is was seen, and no other
    record_property("figure", f"orders: {ends.total():,} interleavings of {', '.join(names)}: one wins each state")


@each_race
async def test_interleavings_come_to_the_same_end_on_a_database(
    new_database_url: NewDatabaseUrl, names: tuple[str, ...]
) -> None:
    database = Database(new_database_url("orders"))
    memory = MemoryUnits()
    in_memory = Shop(memory)
    try:
        await MIGRATIONS.upgrade(database)
        shop = Shop(SqlUnits(database, SqlUnitOfWork))
        for number, choices in enumerate(every_choice()):
            memory.state = MemoryState()
            twin = await in_memory.place(number)
            twin_results = await in_memory.race(twin, names, choices)
            if twin_results is not None and number % 97 == 0:
                order = await shop.place(number)
                results = await shop.race(order, names, Choices(choices.made))
                assert results is not None
                assert await shop.check(order, results) == await in_memory.check(twin, twin_results)
            in_memory.forget_messages()
    finally:
        await database.dispose()
