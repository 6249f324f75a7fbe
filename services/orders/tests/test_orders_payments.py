"""Payments that arrive: paid once, refunded once, and every interleaving with closing has one winner."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orders.domain.errors import IllegalTransitionError, StatusChangedError, UnknownOrderError
from orders.domain.order import Order
from orders.domain.order_status import ChangeReason, OrderStatus
from orders.domain.payment import Payment
from orders.domain.product import Product
from orders.service.accept_payment import PaymentOutcome
from orders.service.events import read_payment
from orders.testing import PRODUCT, RunningOrders, running_orders
from servicekit.errors import MalformedMessageError
from servicekit.message import OutgoingMessage
from servicekit.testing import until

PAID, PAID_BEFORE = PaymentOutcome.PAID, PaymentOutcome.PAID_BEFORE
REFUND, REFUND_BEFORE = PaymentOutcome.REFUND_REQUESTED, PaymentOutcome.REFUND_REQUESTED_BEFORE


def stock(product: Product) -> tuple[int, int, int]:
    return product.available, product.reserved, product.sold


def succeeded(order: Order, **changes: object) -> OutgoingMessage:
    members = {
        "version": 1,
        "payment_id": "payment-1",
        "order_id": order.order_id,
        "amount_minor": order.total_minor,
        "currency": order.currency,
        "paid_at_ms": order.created_at_ms + 5,
    }
    return OutgoingMessage("payment-events", "succeeded", order.order_id, json.dumps(members | changes).encode())


def refunds(orders: RunningOrders) -> list[dict[str, object]]:
    return [json.loads(message.body) for message in orders.publisher.taken("order-events", "refund-requested")]


async def test_a_payment_event_pays_the_order_and_sells_its_units(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = await orders.place("k", quantity=3)
        orders.publisher.messages[:] = [succeeded(order)]
        await orders.deliver()
        paid = await orders.order(order.order_id)
        assert (paid.status, paid.payment_id) == (OrderStatus.AWAITING_SHIPMENT, "payment-1")
        assert paid.paid_at_ms == order.created_at_ms + 5
        assert stock(await orders.product()) == (7, 0, 3)
        (message,) = orders.publisher.messages
        assert (message.topic, message.tag, message.key) == ("order-events", "paid", order.order_id)
        body = json.loads(message.body)
        assert (body["version"], body["order_id"], body["payment_id"]) == (1, order.order_id, "payment-1")
        assert (body["total_minor"], body["currency"]) == (order.total_minor, order.currency)


async def test_a_payment_that_comes_again_is_ignored(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert [await orders.pay(order) for _ in range(3)] == [PAID, PAID_BEFORE, PAID_BEFORE]
        assert stock(await orders.product()) == (9, 0, 1)
        assert len(orders.publisher.taken("order-events", "paid")) == 1


async def test_a_payment_of_a_closed_order_goes_back_once_however_often_it_comes(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.application.use_cases.close_order.cancel(order.order_id)
        assert [await orders.pay(order) for _ in range(3)] == [REFUND, REFUND_BEFORE, REFUND_BEFORE]
        assert refunds(orders) == [
            {
                "version": 1,
                "order_id": order.order_id,
                "payment_id": "payment-1",
                "amount_minor": order.total_minor,
                "currency": order.currency,
                "reason": "order-closed",
            }
        ]
        assert stock(await orders.product()) == (10, 0, 0)


async def test_one_payment_delivered_many_times_at_once_goes_back_once(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.application.use_cases.close_order.cancel(order.order_id)
        outcomes = await asyncio.gather(*(orders.pay(order) for _ in range(8)))
        assert outcomes.count(REFUND) == 1
        assert {REFUND_BEFORE, PaymentOutcome.CONSUMED_BEFORE} >= {one for one in outcomes if one is not REFUND}
        assert len(refunds(orders)) == 1
        assert orders.publisher.halves == {}


async def test_a_second_payment_goes_back_and_the_first_stays(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert await orders.pay(order, "payment-1") is PAID
        assert await orders.pay(order, "payment-2") is REFUND
        assert await orders.pay(order, "payment-1") is PAID_BEFORE
        assert [(one["payment_id"], one["reason"]) for one in refunds(orders)] == [("payment-2", "already-paid")]
        assert (await orders.order(order.order_id)).payment_id == "payment-1"


@pytest.mark.parametrize("changes", [{"amount_minor": 15799}, {"amount_minor": 15801}, {"currency": "EUR"}])
async def test_a_wrong_amount_goes_back_as_it_came_and_the_order_still_waits(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = await orders.place("k")
        assert await orders.pay(order, "payment-1", **changes) is REFUND
        (refund,) = refunds(orders)
        assert refund["reason"] == "wrong-amount"
        assert {name: refund[name] for name in changes} == changes
        assert await orders.order(order.order_id) == order
        assert await orders.pay(order, "payment-2") is PAID


async def test_a_payment_of_an_order_that_is_not_visible_yet_comes_again(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        with pytest.raises(UnknownOrderError):
            await orders.application.accept_payment(Payment("payment-1", "ghost", 1, "CNY", 1))
        assert orders.publisher.attempts == 0


async def test_a_payment_after_expires_at_of_an_order_that_is_still_open_pays_it(tmp_path: Path) -> None:
    async with running_orders(tmp_path) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.pass_payment_window()
        assert await orders.pay(order) is PAID


GOOD = {"payment_id": "p", "order_id": "o", "amount_minor": 1, "currency": "CNY", "paid_at_ms": 1}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        *(
            json.dumps(GOOD | one).encode()
            for one in (
                {"payment_id": None},
                {"payment_id": ""},
                {"order_id": 7},
                {"amount_minor": "1"},
                {"amount_minor": 1.0},
                {"amount_minor": True},
                {"currency": None},
                {"paid_at_ms": None},
            )
        ),
    ],
)
def test_a_malformed_payment_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        read_payment(body)


# ------------------------------------------------------------------------------------------- every interleaving


class Turns:
    """Lets contenders go on one by one, in the order of a script: each waits for its turn before its transaction."""

    def __init__(self, script: list[int]) -> None:
        self._script = iter(script)
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self, _transaction_id: str) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        await turn

    async def run(self, contenders: list[Coroutine[Any, Any, object]]) -> list[object]:
        """What each of them returned or raised. Nobody gets a turn before all are at one, or at their end."""
        tasks = [asyncio.ensure_future(contender) for contender in contenders]

        def all_wait_or_are_done() -> bool:
            return len(self._waiting) == sum(not task.done() for task in tasks)

        await until(all_wait_or_are_done)
        while self._waiting:
            self._waiting.pop(next(self._script, 0) % len(self._waiting)).set_result(None)
            await until(all_wait_or_are_done)
        return [task.exception() or task.result() for task in tasks]


CONTENDERS = ("expire", "cancel", "pay-1", "pay-1", "pay-2")


async def race(folder: Path, who: list[str], turns: list[int]) -> None:
    async with running_orders(folder) as orders:
        await orders.add_product()
        order = await orders.place("k", quantity=2)
        orders.clock.set_wall_ms(order.expires_at_ms)
        script = Turns(turns)
        orders.publisher.before_local = script.wait
        close_order = orders.application.use_cases.close_order
        actions: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "expire": lambda: close_order.expire(order.order_id),
            "cancel": lambda: close_order.cancel(order.order_id),
            "pay-1": lambda: orders.pay(order, "pay-1"),
            "pay-2": lambda: orders.pay(order, "pay-2"),
        }
        results = await script.run([actions[name]() for name in who])
        errors = [result for result in results if isinstance(result, BaseException)]
        assert all(isinstance(error, StatusChangedError | IllegalTransitionError) for error in errors), errors
        await check_one_winner(orders, order, {name for name in who if name.startswith("pay")})


async def check_one_winner(orders: RunningOrders, order: Order, payments: set[str]) -> None:
    final = await orders.order(order.order_id)
    tags = [message.tag for message in orders.publisher.messages if message.tag in {"closed", "paid"}]
    history = await orders.application.use_cases.queries.history(order.order_id)
    assert len(history) == 2
    if final.status is OrderStatus.CLOSED:
        assert tags == ["closed"]
        assert history[-1].reason in {ChangeReason.EXPIRED, ChangeReason.CANCELLED}
        assert stock(await orders.product()) == (PRODUCT.available, 0, 0)
    else:
        assert tags == ["paid"]
        assert stock(await orders.product()) == (PRODUCT.available - 2, 0, 2)
    assert sorted(str(one["payment_id"]) for one in refunds(orders)) == sorted(payments - {str(final.payment_id)})
    assert orders.publisher.halves == {}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(CONTENDERS), min_size=2, max_size=5), st.lists(st.integers(0, 4), max_size=10))
def test_of_payments_and_closings_exactly_one_wins_in_every_interleaving(who: list[str], turns: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(race(Path(folder), who, turns))
