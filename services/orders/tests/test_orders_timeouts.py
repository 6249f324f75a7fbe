"""The timer of an order, from `created` to closing, through both consumer groups."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from orders.domain.order import ChangeReason, OrderStatus
from orders.service.close_order import ExpiryOutcome
from orders.service.events import OrderDeadline, read_deadline
from orders.testing import RunningOrders, running_orders
from osenv import SimClock
from servicekit.errors import MalformedMessageError, PublishError
from servicekit.sql.database import DatabaseClock
from servicekit.testing.databases import NewDatabaseUrl


async def placed_deadline(orders: RunningOrders) -> OrderDeadline:
    await orders.add_product()
    order = await orders.place("k")
    return OrderDeadline(order.order_id, order.expires_at_ms)


@pytest.mark.mechanism("X3", "U5")
async def test_an_unpaid_order_closes_through_both_groups(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        deadline = await placed_deadline(orders)
        assert await orders.deliver() == 1  # created -> scheduler
        (timer,) = orders.publisher.taken("order-timeouts", "expire")
        assert (timer.topic, timer.key, timer.delay_level) == ("order-timeouts", deadline.order_id, 16)
        await orders.pass_payment_window()
        await orders.deliver()  # the timer -> handler
        assert (await orders.order(deadline.order_id)).status is OrderStatus.CLOSED
        product = await orders.product()
        assert (product.available, product.reserved) == (10, 0)
        (closed,) = orders.publisher.taken("order-events", "closed")
        body = json.loads(closed.body)
        assert (body["version"], body["order_id"], body["reason"]) == (1, deadline.order_id, "expired")
        assert body["closed_at_ms"] == body["expires_at_ms"] == deadline.expires_at_ms


@pytest.mark.parametrize(
    ("late_ms", "level"), [(0, 16), (200, 16), (1_000, 15), (25 * 60_000, 9), (1_800_000, 0), (9_000_000, 0)]
)
async def test_a_late_scheduler_sends_the_remaining_time(
    new_database_url: NewDatabaseUrl, late_ms: int, level: int
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        deadline = await placed_deadline(orders)
        await orders.clock.advance(late_ms / 1000)
        assert await orders.application.timeouts.schedule(deadline) == level
        (timer,) = orders.publisher.taken("order-timeouts", "expire")
        assert timer.delay_level == level
        assert read_deadline(timer.body) == deadline


async def test_a_timer_that_rings_early_is_sent_again_for_the_rest_and_closes_nothing(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        deadline = await placed_deadline(orders)
        await orders.clock.advance(20 * 60)
        assert await orders.application.timeouts.fire(deadline) is ExpiryOutcome.TOO_EARLY
        assert (await orders.order(deadline.order_id)).status is OrderStatus.PENDING_PAYMENT
        (timer,) = orders.publisher.taken("order-timeouts", "expire")
        assert timer.delay_level == 14  # ten minutes remain
        await orders.clock.advance(10 * 60)
        await orders.deliver()
        assert (await orders.order(deadline.order_id)).closed_at_ms == deadline.expires_at_ms


async def test_a_process_whose_clock_is_ahead_closes_no_order_of_another_early(
    new_database_url: NewDatabaseUrl,
) -> None:
    url = new_database_url("orders")
    async with running_orders(url) as orders:
        deadline = await placed_deadline(orders)
        machine = SimClock(wall_ms=orders.clock.wall_ms() + orders.config.payment_window_ms)
        by_the_database = DatabaseClock(machine, orders.database)
        by_the_database.correct(orders.clock.wall_ms(), machine.monotonic(), 0.0)
        async with running_orders(url, seed=2, clock=machine, service_clock=by_the_database) as ahead:
            assert await ahead.application.timeouts.fire(deadline) is ExpiryOutcome.TOO_EARLY
            own = await ahead.place("another")
            assert own.created_at_ms == orders.clock.wall_ms()
        assert (await orders.order(deadline.order_id)).status is OrderStatus.PENDING_PAYMENT


async def test_a_wrong_deadline_in_a_message_closes_nothing_early(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        deadline = await placed_deadline(orders)
        forged = OrderDeadline(deadline.order_id, 1)
        assert await orders.application.timeouts.fire(forged) is ExpiryOutcome.TOO_EARLY


async def test_messages_that_come_again_change_nothing(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        deadline = await placed_deadline(orders)
        await orders.pass_payment_window()
        for expected in (ExpiryOutcome.CLOSED, ExpiryOutcome.ALREADY_DECIDED, ExpiryOutcome.ALREADY_DECIDED):
            assert await orders.application.timeouts.fire(deadline) is expected
        history = await orders.history(deadline.order_id)
        assert [change.reason for change in history] == [ChangeReason.PLACED, ChangeReason.EXPIRED]
        product = await orders.product()
        assert (product.available, product.reserved) == (10, 0)


async def test_the_timer_of_a_cancelled_order_is_ignored(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        deadline = await placed_deadline(orders)
        await orders.cancel(deadline.order_id)
        await orders.pass_payment_window()
        assert await orders.application.timeouts.fire(deadline) is ExpiryOutcome.ALREADY_DECIDED
        assert orders.publisher.taken("order-timeouts", "expire") == []


@pytest.mark.mechanism("X3")
async def test_the_timer_of_a_paid_order_is_ignored(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        deadline = await placed_deadline(orders)
        await orders.pay(await orders.order(deadline.order_id))
        await orders.pass_payment_window()
        assert await orders.application.timeouts.fire(deadline) is ExpiryOutcome.ALREADY_DECIDED
        assert (await orders.order(deadline.order_id)).status is OrderStatus.AWAITING_SHIPMENT
        assert [message.tag for message in orders.publisher.messages] == ["created", "paid"]


async def test_the_timer_of_an_unknown_order_is_ignored_and_reported(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        with capture_logs() as lines:
            assert await orders.application.timeouts.fire(OrderDeadline("ghost", 1)) is ExpiryOutcome.UNKNOWN_ORDER
        assert [(line["log_level"], line["order_id"]) for line in lines] == [("warning", "ghost")]


async def test_a_timer_that_cannot_be_sent_fails_so_that_the_message_comes_again(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        deadline = await placed_deadline(orders)
        orders.publisher.is_down = True
        with pytest.raises(PublishError):
            await orders.application.timeouts.schedule(deadline)
        with pytest.raises(PublishError):
            await orders.application.timeouts.fire(deadline)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"order_id": 7, "expires_at_ms": 1}',
        b'{"order_id": "", "expires_at_ms": 1}',
        b'{"order_id": "o"}',
        b'{"order_id": "o", "expires_at_ms": "1"}',
        b'{"order_id": "o", "expires_at_ms": true}',
        b'{"order_id": "o", "expires_at_ms": 1.5}',
    ],
)
async def test_a_malformed_body_is_rejected(body: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        read_deadline(body)


def test_members_of_later_versions_are_ignored() -> None:
    assert read_deadline(b'{"version":9,"order_id":"o","expires_at_ms":3,"new":[]}') == OrderDeadline("o", 3)
