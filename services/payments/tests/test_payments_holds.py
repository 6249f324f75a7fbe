"""Nothing is captured unless orders holds the order for the payment (ADR 122)."""

from __future__ import annotations

import json

import httpx
import pytest

from osenv import SimClock
from payments.adapters.outside import HttpOrders
from payments.domain.errors import OrderNotPayableError, OrdersUnavailableError
from payments.domain.payment import Payment, PaymentMethod, PaymentRequest, PaymentStatus, begin
from payments.service import events
from payments.service.gateway import ChargeRequest
from payments.service.settlement import CHARGE_LATE_MAX_MS
from payments.testing import AUTH_KEYS, ScriptedGateway, Step, order_event, running_payments
from servicekit.auth import ORDERS_HOLD, Tokens
from servicekit.testing.databases import NewDatabaseUrl

REQUEST = PaymentRequest("order-1", "buyer-1", 100, "CNY", PaymentMethod.CARD)
PAYMENT: Payment = begin("payment-1", REQUEST, 7)[0]


async def test_a_payment_that_waited_for_the_gateway_is_not_charged_once_its_order_is_over(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payments.orders.is_away = True
        payments.scripted.is_away = True
        answer = await payments.post_payment("key")
        assert (answer.status_code, answer.json()["status"]) == (202, "CREATED")
        await payments.tell(order_event(events.CLOSED_TAG, "order-1", closed_at_ms=9, created_at_ms=None))
        payments.orders.closed["order-1"] = None
        payments.orders.is_away = payments.scripted.is_away = False
        assert await payments.application.resumer.resume() == 0
        (payment,) = await payments.payments("order-1")
        assert (payment.status, payment.decline_reason) == (PaymentStatus.DECLINED, "order-closed")
        assert payments.scripted.charges == {}


async def test_nothing_is_captured_while_orders_is_away_and_the_payment_goes_on_afterwards(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payments.orders.is_away = True
        answer = await payments.post_payment("key")
        assert (answer.status_code, answer.headers["Retry-After"]) == (202, "1")
        assert await payments.application.resumer.resume() == 1
        assert payments.scripted.charges == {}
        payments.orders.is_away = False
        assert await payments.application.resumer.resume() == 0
        (payment,) = await payments.payments("order-1")
        assert payment.status is PaymentStatus.CAPTURED
        assert payments.orders.holds == {"order-1": payment.payment_id}


async def test_a_declined_payment_lets_its_order_go_whatever_tells_of_it(new_database_url: NewDatabaseUrl) -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock, Step.DECLINE, Step.PEND, Step.PEND)
    async with running_payments(new_database_url("payments"), gateway=gateway, clock=clock) as payments:
        await payments.open_order()
        await payments.pay("answer")
        assert payments.orders.holds == {}
        payment_id = (await payments.pay("webhook")).payment.payment_id
        assert payments.orders.holds == {"order-1": payment_id}
        await payments.webhook(gateway.decide(payment_id, declines=True))
        assert payments.orders.holds == {}
        payment_id = (await payments.pay("lost")).payment.payment_id
        payments.orders.is_away = True  # the hold ends by itself then
        assert (await payments.webhook(gateway.decide(payment_id, declines=True))).status_code == 200


async def test_an_undecided_charge_keeps_its_order_held_and_is_asked_about_whatever_orders_says(
    new_database_url: NewDatabaseUrl,
) -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock, Step.PEND)
    async with running_payments(new_database_url("payments"), gateway=gateway, clock=clock) as payments:
        await payments.open_order()
        payment_id = (await payments.pay("key")).payment.payment_id
        calls = payments.orders.calls
        await payments.application.resumer.resume()
        assert payments.orders.calls == calls + 1
        payments.orders.closed["order-1"] = 5
        assert await payments.application.resumer.resume() == 0
        gateway.decide(payment_id)
        await payments.application.resumer.resume()
        assert (await payments.payment(payment_id)).status is PaymentStatus.CAPTURED


async def test_a_charge_that_may_be_on_its_way_ends_with_its_order_only_when_it_would_have_arrived(
    new_database_url: NewDatabaseUrl,
) -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock, Step.FAIL_BEFORE)
    async with running_payments(new_database_url("payments"), gateway=gateway, clock=clock) as payments:
        await payments.open_order()
        payment_id = (await payments.pay("key")).payment.payment_id
        payments.orders.closed["order-1"] = CHARGE_LATE_MAX_MS - 1
        await payments.application.resumer.resume()
        await clock.advance(CHARGE_LATE_MAX_MS / 1000)
        await payments.application.resumer.resume()
        assert (await payments.payment(payment_id)).status is PaymentStatus.CREATED
        payments.orders.closed["order-1"] = CHARGE_LATE_MAX_MS
        await payments.application.resumer.resume()
        assert (await payments.payment(payment_id)).status is PaymentStatus.DECLINED
        assert gateway.charges == {}


async def test_a_charge_that_a_gateway_carries_out_after_it_has_hung_is_captured_whatever_it_said_before(
    new_database_url: NewDatabaseUrl,
) -> None:
    clock = SimClock()
    gateway = ScriptedGateway(clock, Step.FAIL_BEFORE)
    async with running_payments(new_database_url("payments"), gateway=gateway, clock=clock) as payments:
        await payments.open_order()
        payment = (await payments.pay("key")).payment
        payment_id = payment.payment_id
        payments.orders.closed["order-1"] = 10 * CHARGE_LATE_MAX_MS
        for hangs in (False, True, False):  # it answers for a moment only, and hangs again
            gateway.is_away = hangs
            await payments.application.resumer.resume()
            await clock.advance((CHARGE_LATE_MAX_MS - 1) / 1000)
            assert (await payments.payment(payment_id)).status is PaymentStatus.CREATED
        await gateway.charge(ChargeRequest.of(payment))
        await payments.application.resumer.resume()
        assert (await payments.payment(payment_id)).status is PaymentStatus.CAPTURED


# ------------------------------------------------------------------------------------------------------- over HTTP


def orders_that_answer(status: int, members: object = None, seen: list[httpx.Request] | None = None) -> HttpOrders:
    def respond(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        if status == 0:
            raise httpx.ConnectError("refused")
        return httpx.Response(status, content=b"" if members is None else json.dumps(members).encode())

    return HttpOrders("http://orders", Tokens(AUTH_KEYS, SimClock()), httpx.MockTransport(respond))


async def test_orders_is_asked_for_the_buyer_with_a_token_that_can_do_nothing_else() -> None:
    seen: list[httpx.Request] = []
    orders = orders_that_answer(200, {"held_until_ms": 1}, seen)
    await orders.take(PAYMENT)
    await orders.release(PAYMENT)
    assert [(one.method, one.url.path) for one in seen] == [
        ("PUT", "/orders/order-1/holds/payment-1"),
        ("DELETE", "/orders/order-1/holds/payment-1"),
    ]
    caller = Tokens(AUTH_KEYS, SimClock()).verify(seen[0].headers["Authorization"].removeprefix("Bearer "))
    assert (caller.subject, caller.scopes) == ("buyer-1", frozenset({ORDERS_HOLD}))


@pytest.mark.parametrize("ended_ms_ago", [None, 0, 7])
async def test_an_order_that_cannot_be_paid_any_more_is_told_from_orders_that_does_not_answer(
    ended_ms_ago: int | None,
) -> None:
    problem = {"type": "urn:hourglass:problem:order-not-payable", "hold_ended_ms_ago": ended_ms_ago}
    with pytest.raises(OrderNotPayableError) as rejected:
        await orders_that_answer(409, problem).take(PAYMENT)
    assert rejected.value.hold_ended_ms_ago == ended_ms_ago


@pytest.mark.parametrize(
    ("status", "members"),
    [
        (0, None),
        (404, None),
        (404, {"type": "urn:hourglass:problem:unknown-order"}),
        (409, {"type": "urn:hourglass:problem:order-held", "detail": "another payment"}),
        (409, ["order-not-payable"]),
        (429, None),
        (503, {"type": "urn:hourglass:problem:overloaded"}),
    ],
)
async def test_everything_else_is_no_hold_and_nothing_is_captured(status: int, members: object) -> None:
    orders = orders_that_answer(status, members)
    with pytest.raises(OrdersUnavailableError):
        await orders.take(PAYMENT)
    with pytest.raises(OrdersUnavailableError):
        await orders.release(PAYMENT)
    orders.stop()
    await orders.run()
