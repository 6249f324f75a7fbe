"""An order that a payment holds is not closed under its hands (ADR 122)."""

from __future__ import annotations

from contextlib import suppress

import httpx
import pytest

from orders.domain.order import HOLD_MS, PAST_EXPIRY_MAX_MS, Order, OrderStatus
from orders.service.close_order import ExpiryOutcome
from orders.service.events import OrderDeadline
from orders.service.payments import OrderToPay, PaymentOutcome, PaymentRejectedError
from orders.service.status_commands import CompletionOutcome
from orders.testing import BUYER, RunningOrders, running_orders
from servicekit.auth import ORDERS_HOLD, PAYMENTS_READ, ROLES, Caller
from servicekit.testing.databases import NewDatabaseUrl

CLOSED, HELD = ExpiryOutcome.CLOSED, ExpiryOutcome.HELD


async def ask(
    orders: RunningOrders, method: str, order: Order, payment_id: str = "payment-1", subject: str = BUYER.subject
) -> httpx.Response:
    token = orders.application.tokens.issue(subject, (ORDERS_HOLD,))
    path = f"/orders/{order.order_id}/holds/{payment_id}"
    return await orders.http.request(method, path, headers={"Authorization": f"Bearer {token}"})


async def placed(orders: RunningOrders) -> Order:
    await orders.add_product()
    order = await orders.place("k")
    orders.publisher.messages.clear()
    return order


async def fire(orders: RunningOrders, order: Order) -> ExpiryOutcome:
    return await orders.application.timeouts.fire(OrderDeadline(order.order_id, order.expires_at_ms))


async def test_the_timer_of_a_held_order_rings_again_until_the_order_is_paid(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        orders.clock.set_wall_ms(order.expires_at_ms - 1)
        answer = await ask(orders, "PUT", order)
        assert (answer.status_code, answer.json()["held_until_ms"]) == (200, order.expires_at_ms - 1 + HOLD_MS)
        orders.clock.set_wall_ms(order.expires_at_ms)
        assert await fire(orders, order) is HELD
        (timer,) = orders.publisher.taken("order-timeouts", "expire")
        assert timer.delay_level == 2  # 5 s
        assert await orders.pay(order) is PaymentOutcome.PAID
        assert await fire(orders, order) is ExpiryOutcome.ALREADY_DECIDED


async def test_a_hold_that_is_not_prolonged_ends_and_the_order_closes(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        orders.clock.set_wall_ms(order.expires_at_ms - 1)
        await ask(orders, "PUT", order)
        orders.clock.set_wall_ms(order.expires_at_ms - 1 + HOLD_MS)
        assert await fire(orders, order) is CLOSED
        answer = await ask(orders, "PUT", order)
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:hourglass:problem:order-not-payable")
        assert (answer.json()["order_status"], answer.json()["hold_ended_ms_ago"]) == ("CLOSED", 0)


async def test_a_held_order_is_not_cancelled_until_the_payment_lets_it_go(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        await ask(orders, "PUT", order)
        for role, subject in (("buyer", BUYER.subject), ("seller", "seller-1")):
            path = f"/orders/{order.order_id}/cancel"
            answer = await orders.http.post(path, headers=orders.headers(role, subject))
            assert (answer.status_code, answer.json()["type"]) == (409, "urn:hourglass:problem:order-held")
            assert "Retry-After" in answer.headers
        assert (await ask(orders, "DELETE", order, "payment-2")).status_code == 204  # not its hold
        assert (await orders.order(order.order_id)).is_held(orders.clock.wall_ms())
        for _ in range(2):
            assert (await ask(orders, "DELETE", order)).status_code == 204
        assert (await orders.cancel(order.order_id)).status is OrderStatus.CLOSED


async def test_a_hold_is_prolonged_by_its_payment_alone_and_not_for_ever(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        await ask(orders, "PUT", order)
        assert (await ask(orders, "PUT", order, "payment-2")).json()["type"] == "urn:hourglass:problem:order-held"
        last_ms = order.expires_at_ms + PAST_EXPIRY_MAX_MS
        orders.clock.set_wall_ms(last_ms - 1)
        assert (await ask(orders, "PUT", order)).json()["held_until_ms"] == last_ms
        assert await fire(orders, order) is HELD
        orders.clock.set_wall_ms(last_ms)
        assert (await ask(orders, "PUT", order)).status_code == 409
        assert await fire(orders, order) is CLOSED


async def test_no_payment_begins_once_the_time_is_over(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        orders.clock.set_wall_ms(order.expires_at_ms)
        answer = await ask(orders, "PUT", order)
        assert (answer.status_code, answer.json()["hold_ended_ms_ago"]) == (409, None)
        assert await fire(orders, order) is CLOSED


async def test_only_payments_holds_orders_and_only_for_their_buyers(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        assert not any(ORDERS_HOLD in scopes for scopes in ROLES.values())
        path = f"/orders/{order.order_id}/holds/payment-1"
        assert (await orders.http.put(path, headers=orders.headers("operator"))).status_code == 403
        for method in ("PUT", "DELETE"):
            assert (await ask(orders, method, order, subject="buyer-2")).status_code == 404
        assert await orders.order(order.order_id) == order


@pytest.mark.parametrize("is_prolonged", [False, True])
async def test_a_close_on_an_old_reading_loses_to_the_hold(
    new_database_url: NewDatabaseUrl, is_prolonged: bool
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        if is_prolonged:
            await ask(orders, "PUT", order)
            await orders.clock.advance(HOLD_MS / 1000)
        go_on = orders.publisher.before_local

        async def hold_meanwhile(_transaction_id: str) -> None:
            orders.publisher.before_local = go_on
            assert (await ask(orders, "PUT", order)).status_code == 200

        orders.publisher.before_local = hold_meanwhile
        answer = await orders.http.post(f"/orders/{order.order_id}/cancel", headers=orders.headers())
        assert (answer.status_code, answer.json()["type"]) == (409, "urn:hourglass:problem:status-changed")
        assert await orders.pay(order) is PaymentOutcome.PAID


def let_go_before_the_next_write(orders: RunningOrders, order: Order) -> None:
    """The payment that holds the order lets it go after the next use case has read it, and before that writes."""
    go_on = orders.publisher.before_local

    async def let_go(_transaction_id: str) -> None:
        orders.publisher.before_local = go_on
        assert (await ask(orders, "DELETE", order)).status_code == 204

    orders.publisher.before_local = let_go


async def test_an_order_that_its_payment_lets_go_while_its_timer_closes_it_is_closed(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_with_payment(orders, "DECLINED")
        let_go_before_the_next_write(orders, order)
        assert await fire(orders, order) is CLOSED
        assert (await orders.order(order.order_id)).status is OrderStatus.CLOSED


async def test_an_order_that_another_payment_lets_go_while_it_completes_is_completed(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        await ask(orders, "PUT", order)
        await orders.pay_and_ship(order, "a payment that held it before")
        await orders.pass_completion_window()
        let_go_before_the_next_write(orders, order)
        assert await orders.application.complete_order.fire(order.order_id) is CompletionOutcome.COMPLETED


# ---------------------------------------------------------------------- before an order closes, payments is asked


async def order_with_payment(orders: RunningOrders, status: str) -> Order:
    """An order at its expiry, whose hold is over, and of whose payment nothing was heard."""
    order = await placed(orders)
    orders.desk.decides = status
    what = OrderToPay(order.order_id, order.total_minor, order.currency)
    with suppress(PaymentRejectedError):  # that it was declined
        await orders.desk.pay(BUYER, what, "card", "key")
    await ask(orders, "PUT", order)
    orders.clock.set_wall_ms(order.expires_at_ms)
    orders.desk.callers.clear()
    return order


async def test_an_order_that_was_paid_in_time_is_not_closed_because_the_news_is_late(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_with_payment(orders, "CAPTURED")
        assert await fire(orders, order) is ExpiryOutcome.ALREADY_DECIDED
        paid = await orders.order(order.order_id)
        assert (paid.status, paid.payment_id) == (OrderStatus.AWAITING_SHIPMENT, "payment-1")
        assert orders.desk.callers == [Caller(BUYER.subject, frozenset({PAYMENTS_READ}))]
        assert await orders.pay(order) is PaymentOutcome.PAID_BEFORE  # the message, at last
        assert [message.tag for message in orders.publisher.messages] == ["paid"]


@pytest.mark.parametrize("status", ["DECLINED", "REFUNDED"])
async def test_a_payment_that_keeps_no_money_lets_its_order_close(
    new_database_url: NewDatabaseUrl, status: str
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_with_payment(orders, status)
        assert await fire(orders, order) is CLOSED


async def test_an_order_that_no_payment_has_held_closes_without_a_question(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await placed(orders)
        orders.desk.is_away = True
        orders.clock.set_wall_ms(order.expires_at_ms)
        assert await fire(orders, order) is CLOSED
        assert orders.desk.callers == []


@pytest.mark.parametrize("is_away", [True, False])
async def test_no_answer_and_an_undecided_payment_keep_the_order_open_for_ten_minutes(
    new_database_url: NewDatabaseUrl, is_away: bool
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_with_payment(orders, "CREATED")
        orders.desk.is_away = is_away
        assert await fire(orders, order) is HELD
        assert len(orders.publisher.taken("order-timeouts", "expire")) == 1
        orders.clock.set_wall_ms(order.expires_at_ms + PAST_EXPIRY_MAX_MS - 1)
        assert await fire(orders, order) is HELD
        orders.clock.set_wall_ms(order.expires_at_ms + PAST_EXPIRY_MAX_MS)
        assert await fire(orders, order) is CLOSED


async def test_the_reconciler_closes_an_order_as_soon_as_its_payment_is_decided(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await order_with_payment(orders, "CREATED")
        orders.clock.set_wall_ms(order.expires_at_ms + PAST_EXPIRY_MAX_MS - 1)
        await orders.application.reconciler.round()
        assert (await orders.order(order.order_id)).status is OrderStatus.PENDING_PAYMENT
        orders.clock.set_wall_ms(order.expires_at_ms + PAST_EXPIRY_MAX_MS)
        await orders.application.reconciler.round()
        assert (await orders.order(order.order_id)).status is OrderStatus.CLOSED
