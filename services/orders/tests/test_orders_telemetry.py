"""The trace of an order, and what is counted of orders."""

from __future__ import annotations

import pytest
from sqlalchemy import text

import telemetry
from orders.adapters.outside import REASON, OtelOrderMeter
from orders.app import MIGRATIONS
from orders.domain.order import ChangeReason, Order, OrderStatus, StatusChange
from orders.testing import BUYER, PRODUCT, SELLER, RunningOrders, running_orders
from servicekit.sql.database import Database
from servicekit.testing.databases import NewDatabaseUrl
from telemetry.testing.recorder import Recorder
from telemetry.trace_tree import ReceivedSpan

TRACER = telemetry.tracer("test")


def named(recorder: Recorder, name: str) -> ReceivedSpan:
    (found,) = [span for span in recorder.spans() if span.name == name]
    return found


async def placed(orders: RunningOrders) -> Order:
    await orders.add_product()
    with TRACER.start_as_current_span("placing"):
        return await orders.place("k")


async def change(orders: RunningOrders, order: Order, what: str) -> None:
    cases = orders.application.use_cases
    if what == "cancel order":
        await cases.close_order.cancel(order.order_id, BUYER)
    elif what == "ship order":
        await orders.pay(order)
        await cases.ship_order(order.order_id, SELLER)
    else:
        await orders.pay_and_ship(order)
        await cases.confirm_receipt(order.order_id, BUYER)


@pytest.mark.parametrize("what", ["cancel order", "ship order", "confirm receipt"])
async def test_what_a_request_does_to_an_order_is_in_its_trace_and_linked_with_the_request(
    new_database_url: NewDatabaseUrl, what: str
) -> None:
    with Recorder() as recorder:
        async with running_orders(new_database_url("orders")) as orders:
            order = await placed(orders)
            with TRACER.start_as_current_span("asking"):
                await change(orders, order, what)
            history = await orders.history(order.order_id)
        done, placing, asking = named(recorder, what), named(recorder, "placing"), named(recorder, "asking")
    assert (done.trace_id, done.parent_span_id) == (placing.trace_id, placing.span_id)
    assert done.links == [(asking.trace_id, asking.span_id)]
    assert done.attributes[telemetry.names.ORDER_ID] == order.order_id
    assert placing.attributes[telemetry.names.ORDER_ID] == order.order_id
    assert {row.trace_id for row in history} == {placing.trace_id}


async def test_an_order_that_was_placed_outside_a_trace_is_changed_in_that_of_the_request(
    new_database_url: NewDatabaseUrl,
) -> None:
    with Recorder() as recorder:
        async with running_orders(new_database_url("orders")) as orders:
            await orders.add_product()
            order = await orders.place("k")
            with TRACER.start_as_current_span("asking"):
                await change(orders, order, "cancel order")
            history = await orders.history(order.order_id)
        done, asking = named(recorder, "cancel order"), named(recorder, "asking")
    assert (done.trace_id, done.parent_span_id, done.links) == (asking.trace_id, asking.span_id, [])
    assert [row.trace_id for row in history] == [None, asking.trace_id]


async def test_the_local_transaction_and_the_request_have_spans_of_their_statements(
    new_database_url: NewDatabaseUrl,
) -> None:
    with Recorder() as recorder:
        async with running_orders(new_database_url("orders")) as orders:
            await orders.add_product()
            assert (await orders.post_order("k")).status_code == 201
        request = named(recorder, "POST /orders")
        statements = [span for span in recorder.spans() if span.trace_id == request.trace_id and span != request]
    assert "INSERT INTO orders" in " ".join(str(span.attributes["db.query.text"]) for span in statements)
    assert not [span for span in statements if BUYER.subject in str(span.attributes)]


async def test_orders_of_the_version_before_have_no_trace_and_go_on(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("orders")
    database = Database(url)
    try:
        await MIGRATIONS.upgrade(database, "0004")
        async with database.writing() as connection:
            await connection.execute(text("INSERT INTO products VALUES ('seat', 'A seat', 100, 'CNY', 9, 1, 0)"))
            await connection.execute(
                text(
                    "INSERT INTO orders (order_id, buyer_id, status, total_minor, currency, created_at_ms,"
                    " expires_at_ms) VALUES ('old', 'buyer-1', 'PENDING_PAYMENT', 100, 'CNY', 10, 99)"
                )
            )
            await connection.execute(text("INSERT INTO order_lines VALUES ('old', 1, 'seat', 1, 100)"))
            await connection.commit()
    finally:
        await database.dispose()
    async with running_orders(url) as orders:
        assert (await orders.order("old")).traceparent is None
        assert (await orders.cancel("old")).status is OrderStatus.CLOSED
        with Recorder():
            await orders.clock.advance(1)
            with TRACER.start_as_current_span("placing"):
                new = await orders.place("k", product_id=PRODUCT.product_id)
        assert new.traceparent is not None
        assert await orders.order(new.order_id) == new
        await MIGRATIONS.downgrade(orders.database, "0004")
        await MIGRATIONS.upgrade(orders.database)
        assert (await orders.order(new.order_id)).traceparent is None


async def test_what_happens_to_orders_is_counted(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
    paid = StatusChange(order.order_id, order.status, OrderStatus.AWAITING_SHIPMENT, ChangeReason.PAID, 0, "a", None)
    late_ms = order.expires_at_ms + 250
    expired = StatusChange(order.order_id, order.status, OrderStatus.CLOSED, ChangeReason.EXPIRED, late_ms, "a", None)
    cancelled = StatusChange(order.order_id, order.status, OrderStatus.CLOSED, ChangeReason.CANCELLED, 5, "a", None)
    first = StatusChange(order.order_id, None, order.status, ChangeReason.PLACED, 0, "a", None)
    with Recorder() as recorder:
        meter = OtelOrderMeter()
        for one in (first, first, paid, expired, cancelled):
            meter.changed(order, one)
        points = {(point.name, str(point.attributes.get(REASON, ""))): point for point in recorder.metrics()}
    assert points["hourglass.orders.placed", ""].value == 2
    assert points["hourglass.orders.paid", ""].value == 1
    assert points["hourglass.orders.closed", "expired"].value == 1
    assert points["hourglass.orders.closed", "cancelled"].value == 1
    lateness = points["hourglass.orders.close.lateness", ""]
    assert (lateness.count, lateness.value, lateness.unit) == (1, 0.25, "s")
