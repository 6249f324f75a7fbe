"""Orders that complete by themselves some days after they were shipped, through both consumer groups."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from orders.domain.order import ChangeReason, Order, OrderStatus
from orders.service import events
from orders.service.events import ShippedOrder, read_shipped
from orders.service.status_commands import DELIVER_AFTER_MAX_MS, CompletionOutcome
from orders.testing import BUYER, RunningOrders, running_orders
from servicekit.errors import MalformedMessageError, PublishError
from servicekit.message import OutgoingMessage
from servicekit.testing.databases import NewDatabaseUrl

WEEK_MS = 7 * 86_400_000


async def shipped_order(orders: RunningOrders) -> Order:
    await orders.add_product()
    return await orders.pay_and_ship(await orders.place("k"))


def timers(orders: RunningOrders) -> list[OutgoingMessage]:
    return orders.publisher.taken("order-completions", "complete")


@pytest.mark.mechanism("X1")
async def test_a_shipped_order_completes_through_both_groups(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await shipped_order(orders)
        assert order.shipped_at_ms is not None
        await orders.deliver()  # shipped -> scheduler
        (timer,) = timers(orders)
        assert (timer.key, timer.delay_level) == (order.order_id, 0)
        assert timer.deliver_at_ms == order.shipped_at_ms + WEEK_MS
        await orders.pass_completion_window()
        await orders.deliver()  # the timer -> handler
        completed = await orders.order(order.order_id)
        assert (completed.status, completed.completed_at_ms) == (OrderStatus.COMPLETED, timer.deliver_at_ms)
        last = (await orders.history(order.order_id))[-1]
        assert (last.reason, last.actor) == (ChangeReason.COMPLETED_AUTOMATICALLY, events.COMPLETION_HANDLER_GROUP)
        (told,) = orders.publisher.taken("order-events", "completed")
        body = json.loads(told.body)
        assert (body["version"], body["reason"], body["completed_at_ms"]) == (
            1,
            "completed-automatically",
            timer.deliver_at_ms,
        )
        assert (await orders.product()).sold == 1


async def test_a_timer_that_rings_early_is_sent_again_for_the_rest_and_completes_nothing(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await shipped_order(orders)
        assert order.shipped_at_ms is not None
        orders.clock.set_wall_ms(order.shipped_at_ms + WEEK_MS - 1)
        assert await orders.application.complete_order.fire(order.order_id) is CompletionOutcome.TOO_EARLY
        assert await orders.order(order.order_id) == order
        (timer,) = timers(orders)
        assert timer.deliver_at_ms == order.shipped_at_ms + WEEK_MS
        orders.clock.set_wall_ms(order.shipped_at_ms + WEEK_MS)
        assert await orders.application.complete_order.fire(order.order_id) is CompletionOutcome.COMPLETED


async def test_a_timer_that_rings_late_completes_the_order_when_it_comes(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await shipped_order(orders)
        await orders.pass_completion_window()
        await orders.clock.advance(3 * 86_400)
        assert await orders.application.complete_order.fire(order.order_id) is CompletionOutcome.COMPLETED
        assert (await orders.order(order.order_id)).completed_at_ms == orders.clock.wall_ms()


async def test_a_late_scheduler_sends_a_timer_for_a_time_that_has_passed(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await shipped_order(orders)
        await orders.clock.advance(30 * 86_400)
        await orders.deliver()
        (timer,) = timers(orders)
        assert timer.deliver_at_ms is not None
        assert timer.deliver_at_ms < orders.clock.wall_ms()
        await orders.deliver()
        assert (await orders.order(order.order_id)).status is OrderStatus.COMPLETED


async def test_a_time_longer_than_the_queue_keeps_a_message_is_made_of_several(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders"), completion_after_ms=100 * 86_400_000) as orders:
        order = await shipped_order(orders)
        assert order.shipped_at_ms is not None
        await orders.deliver()
        hops_ms = []
        while (await orders.order(order.order_id)).status is OrderStatus.SHIPPED:
            (timer,) = timers(orders)
            assert timer.deliver_at_ms is not None
            hops_ms.append(timer.deliver_at_ms - orders.clock.wall_ms())
            orders.clock.set_wall_ms(timer.deliver_at_ms)
            await orders.deliver()
        assert hops_ms == [DELIVER_AFTER_MAX_MS, DELIVER_AFTER_MAX_MS, 100 * 86_400_000 - 2 * DELIVER_AFTER_MAX_MS]


async def test_messages_that_come_again_change_nothing(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await shipped_order(orders)
        await orders.pass_completion_window()
        fire = orders.application.complete_order.fire
        assert [await fire(order.order_id) for _ in range(3)] == [
            CompletionOutcome.COMPLETED,
            CompletionOutcome.ALREADY_COMPLETED,
            CompletionOutcome.ALREADY_COMPLETED,
        ]
        assert len(await orders.history(order.order_id)) == 4
        assert len(orders.publisher.taken("order-events", "completed")) == 1


async def test_the_timer_of_an_order_that_its_buyer_has_confirmed_is_ignored(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await shipped_order(orders)
        confirmed = await orders.application.use_cases.confirm_receipt(order.order_id, BUYER)
        await orders.pass_completion_window()
        assert await orders.application.complete_order.fire(order.order_id) is CompletionOutcome.ALREADY_COMPLETED
        assert await orders.order(order.order_id) == confirmed
        assert timers(orders) == []


async def test_a_buyer_who_confirms_while_the_timer_rings_wins_or_loses_and_both_is_told_once(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await shipped_order(orders)
        await orders.pass_completion_window()
        go_on = orders.publisher.before_local

        async def confirm_meanwhile(_transaction_id: str) -> None:
            orders.publisher.before_local = go_on
            await orders.application.use_cases.confirm_receipt(order.order_id, BUYER)

        orders.publisher.before_local = confirm_meanwhile
        assert await orders.application.complete_order.fire(order.order_id) is CompletionOutcome.ALREADY_COMPLETED
        assert (await orders.history(order.order_id))[-1].reason is ChangeReason.RECEIVED
        assert len(orders.publisher.taken("order-events", "completed")) == 1
        assert orders.publisher.halves == {}


async def test_an_order_that_is_not_shipped_is_not_completed_whatever_a_message_says(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        with capture_logs() as lines:
            assert await orders.application.complete_order.fire(order.order_id) is CompletionOutcome.NOT_SHIPPED
            assert await orders.application.complete_order.fire("ghost") is CompletionOutcome.UNKNOWN_ORDER
        assert [(line["log_level"], line["order_id"]) for line in lines] == [
            ("warning", order.order_id),
            ("warning", "ghost"),
        ]
        assert await orders.order(order.order_id) == order


async def test_without_the_queue_nothing_changes_and_the_message_comes_again(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        order = await shipped_order(orders)
        complete_order = orders.application.complete_order
        orders.publisher.is_down = True
        for _ in range(2):  # early, then due
            with pytest.raises(PublishError):
                await complete_order.fire(order.order_id)
            await orders.pass_completion_window()
        with pytest.raises(PublishError):
            await complete_order.schedule(order.order_id, 1)
        assert await orders.order(order.order_id) == order
        orders.publisher.is_down = False
        assert await complete_order.fire(order.order_id) is CompletionOutcome.COMPLETED


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"order_id": "o"}', b'{"order_id": "o", "shipped_at_ms": "1"}'])
def test_a_malformed_body_is_rejected(body: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        read_shipped(body)


@pytest.mark.mechanism("X9")
def test_members_of_later_versions_are_ignored() -> None:
    assert read_shipped(b'{"version":9,"order_id":"o","shipped_at_ms":3,"new":[]}') == ShippedOrder("o", 3)
