"""What orders does when payments knows less than it, says what orders does not understand, or does not answer."""

from __future__ import annotations

from orders.testing import PRODUCT, RunningOrders, running_orders
from servicekit.testing.databases import NewDatabaseUrl


async def told(orders: RunningOrders) -> list[tuple[str, str]]:
    """What a round tells: tags and keys."""
    orders.publisher.messages.clear()
    await orders.clock.advance(601)  # what was told before counts as lost
    await orders.application.reconciler.round()
    return [(message.tag, message.key) for message in orders.publisher.messages]


async def test_what_payments_has_not_heard_is_told_again(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        waiting, paid, closed = [await orders.place(key) for key in ("waiting", "paid", "closed")]
        await orders.pay(paid)
        await orders.cancel(closed.order_id)
        heard = orders.desk.heard
        assert set(await told(orders)) == {
            ("created", waiting.order_id),
            ("paid", paid.order_id),
            ("closed", closed.order_id),
        }
        heard |= {waiting.order_id: "OPEN", paid.order_id: "OPEN", closed.order_id: "OPEN"}
        assert set(await told(orders)) == {("paid", paid.order_id), ("closed", closed.order_id)}
        heard |= {paid.order_id: "PAID", closed.order_id: "CLOSED", waiting.order_id: "A WORD OF TOMORROW"}
        assert await told(orders) == []
        assert orders.desk.callers[-1].subject == "order-reconciler"


async def test_without_payments_an_overdue_order_waits_for_its_timer(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.pass_payment_window()
        orders.desk.is_away = True
        assert await told(orders) == []
        assert (await orders.order(order.order_id)).status == "PENDING_PAYMENT"
        orders.desk.is_away = False
        assert await told(orders) == [("closed", order.order_id)]
        assert (await orders.product()).available == PRODUCT.available


async def test_a_round_of_a_small_page_reads_the_newest_and_then_the_others(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders"), reconcile_rows_max=1) as orders:
        await orders.add_product()
        placed = []
        for number in range(3):
            placed.append(await orders.place(f"k-{number}"))
            await orders.clock.advance(0.001)
        oldest, middle, newest = (order.order_id for order in placed)
        assert await told(orders) == [("created", newest), ("created", middle)]
        assert await told(orders) == [("created", newest), ("created", oldest)]
