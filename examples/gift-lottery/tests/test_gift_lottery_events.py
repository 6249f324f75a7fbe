"""The lottery as one more group on `order-events`: with the real broker, in memory, and the real bodies of orders."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from gift_lottery.app import TOPIC, build_consumer
from gift_lottery.database import open_database
from gift_lottery.lottery import GROUP, Lottery, OrderEvent, Standing, TicketStatus, wins
from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, ClientConfig, Message, Producer
from orders.domain.order import ChangeReason, Order, OrderLine, Origin, Payment, place
from orders.service import events
from orders.testing import SELLER, running_orders
from servicekit.config import SQLITE_PREFIX
from servicekit.message import OutgoingMessage

SECRET = b"a secret of the tests"
GIFTS = 3
REAL_PATIENCE_S = 30
RESERVED, AWARDED, BLANK = TicketStatus.RESERVED, TicketStatus.AWARDED, TicketStatus.BLANK


@pytest.fixture(autouse=True)
async def _topic(broker: EmbeddedBroker) -> None:
    async with Admin(broker.url) as admin:
        await admin.update_topic(TOPIC, read_queue_count=4, write_queue_count=4)


@pytest.fixture
async def lottery(tmp_path: Path, broker: EmbeddedBroker) -> AsyncIterator[Lottery]:
    """Every ticket wins."""
    engine = await open_database(str(tmp_path / "lottery.db"), GIFTS)
    yield Lottery(engine, broker.clock, SECRET, one_in=1)
    await engine.dispose()


ORIGIN = Origin("buyer", 1)


def order_of(order_id: str) -> Order:
    """An order that waits for its payment."""
    line = OrderLine("seat", 1, 15800)
    return place(order_id, f"buyer-of-{order_id}", (line,), "CNY", ORIGIN, payment_window_ms=1_800_000)[0]


def paid_order(order_id: str) -> Order:
    return order_of(order_id).paid(Payment(f"payment-{order_id}", order_id, 15800, "CNY", 1), ORIGIN)[0]


def paid(order_id: str) -> OutgoingMessage:
    return events.paid(paid_order(order_id))


def shipped(order_id: str) -> OutgoingMessage:
    return events.shipped(paid_order(order_id).changed(ChangeReason.SHIPPED, ORIGIN)[0])


def completed(order_id: str) -> OutgoingMessage:
    on_its_way = paid_order(order_id).changed(ChangeReason.SHIPPED, ORIGIN)[0]
    return events.completed(*on_its_way.changed(ChangeReason.RECEIVED, ORIGIN))


def cancelled_by_seller(order_id: str) -> OutgoingMessage:
    """`closed`, after the order was paid."""
    return events.closed(*paid_order(order_id).changed(ChangeReason.SELLER_CANCELLED, ORIGIN))


def expired(order_id: str) -> OutgoingMessage:
    """`closed`, and nobody had paid."""
    return events.closed(*order_of(order_id).changed(ChangeReason.EXPIRED, ORIGIN))


async def tell(broker: EmbeddedBroker, *messages: OutgoingMessage) -> None:
    async with Producer("orders", broker.url) as producer:
        for one in messages:
            await producer.send(Message(one.topic, one.body, tag=one.tag, keys=one.key))


async def consume(broker: EmbeddedBroker, lottery: Lottery, is_met: Callable[[Standing], bool]) -> Standing:
    """A member of the group at work until the lottery stands so, and a minute longer: nothing may change any more."""
    async with build_consumer(broker.url, lottery):
        async with asyncio.timeout(REAL_PATIENCE_S):  # SQLite takes real time
            while not is_met(await lottery.standing()):
                await broker.clock.advance(1)
        for _ in range(10):
            await broker.clock.advance(6)
            await lottery.standing()
    return await lottery.standing()


def has(**counts: int) -> Callable[[Standing], bool]:
    wanted = {TicketStatus(name): count for name, count in counts.items()}
    return lambda standing: standing.tickets == wanted


async def test_every_paid_order_gets_one_ticket(broker: EmbeddedBroker, lottery: Lottery) -> None:
    await tell(broker, paid("o-1"), paid("o-2"), shipped("o-3"), events.created(order_of("o-4")))
    standing = await consume(broker, lottery, has(RESERVED=2))
    assert standing == Standing(GIFTS - 2, {RESERVED: 2})
    assert await lottery.winners() == [("o-1", "buyer-of-o-1", RESERVED), ("o-2", "buyer-of-o-2", RESERVED)]


async def test_an_event_that_comes_twice_draws_once(broker: EmbeddedBroker, lottery: Lottery) -> None:
    """Sent twice: two message ids with one meaning (mechanisms I1, I2)."""
    await tell(broker, paid("o-1"), paid("o-1"), paid("o-1"), paid("o-2"))
    standing = await consume(broker, lottery, has(RESERVED=2))
    assert standing == Standing(GIFTS - 2, {RESERVED: 2})


async def test_an_event_whose_acknowledgement_was_lost_draws_once(broker: EmbeddedBroker, lottery: Lottery) -> None:
    """The member dies after its commit: the same message comes again, to another member."""
    handle, failures = lottery.handle, 0

    async def handle_and_fail_once(event: OrderEvent) -> None:
        nonlocal failures
        await handle(event)
        failures += 1
        if failures == 1:
            raise ConnectionError("the answer was lost")

    lottery.handle = handle_and_fail_once  # type: ignore[method-assign]
    await tell(broker, paid("o-1"))
    standing = await consume(broker, lottery, lambda _: failures == 2)
    assert (failures, standing) == (2, Standing(GIFTS - 1, {RESERVED: 1}))


async def test_a_gift_is_the_buyers_when_the_order_is_completed(broker: EmbeddedBroker, lottery: Lottery) -> None:
    await tell(broker, paid("o-1"))
    await consume(broker, lottery, has(RESERVED=1))
    await tell(broker, completed("o-1"))
    assert await consume(broker, lottery, has(AWARDED=1)) == Standing(GIFTS - 1, {AWARDED: 1})


async def test_the_gift_of_an_order_that_its_seller_closes_goes_back_into_the_pot(
    broker: EmbeddedBroker, lottery: Lottery
) -> None:
    await tell(broker, paid("o-1"))
    await consume(broker, lottery, has(RESERVED=1))
    await tell(broker, cancelled_by_seller("o-1"))
    assert await consume(broker, lottery, has(RETURNED=1)) == Standing(GIFTS, {TicketStatus.RETURNED: 1})


async def test_an_unpaid_order_has_no_ticket(broker: EmbeddedBroker, lottery: Lottery) -> None:
    await tell(broker, expired("o-1"), paid("o-2"))
    assert (await consume(broker, lottery, has(RESERVED=1))).tickets == {RESERVED: 1}


async def test_events_may_come_in_any_order(broker: EmbeddedBroker, lottery: Lottery) -> None:
    """A retry is overtaken by what happened later: `completed` draws by itself, and after `closed` nobody draws."""
    await tell(broker, completed("o-1"), cancelled_by_seller("o-2"))
    await consume(broker, lottery, has(AWARDED=1, VOID=1))
    await tell(broker, paid("o-1"), paid("o-2"), paid("o-3"))
    standing = await consume(broker, lottery, has(AWARDED=1, VOID=1, RESERVED=1))
    assert standing == Standing(GIFTS - 2, {AWARDED: 1, TicketStatus.VOID: 1, RESERVED: 1})


async def test_there_are_not_more_gifts_than_were_put_in(broker: EmbeddedBroker, lottery: Lottery) -> None:
    await tell(broker, *(paid(f"o-{number}") for number in range(5)))
    standing = await consume(broker, lottery, has(RESERVED=3, TOO_LATE=2))
    assert standing == Standing(0, {RESERVED: 3, TicketStatus.TOO_LATE: 2})


async def test_two_members_share_the_events_and_draw_each_order_once(broker: EmbeddedBroker, lottery: Lottery) -> None:
    await tell(broker, *(paid(f"o-{number}") for number in range(20)))
    async with build_consumer(broker.url, lottery, ClientConfig(instance_name="another")):
        standing = await consume(broker, lottery, has(RESERVED=3, TOO_LATE=17))
    assert standing.tickets == {RESERVED: 3, TicketStatus.TOO_LATE: 17}


async def test_an_event_that_cannot_be_read_is_tried_again_and_holds_up_no_other(
    broker: EmbeddedBroker, lottery: Lottery
) -> None:
    await tell(broker, OutgoingMessage(TOPIC, "paid", "o-1", b"{}"), paid("o-2"))
    assert (await consume(broker, lottery, has(RESERVED=1))).tickets == {RESERVED: 1}
    async with Admin(broker.url) as admin:
        assert (await admin.topic_route(f"%RETRY%{GROUP}")).topic == f"%RETRY%{GROUP}"


@pytest.mark.mechanism("X8", "U8")
async def test_orders_sells_to_a_buyer_who_wins_and_does_not_know_of_it(
    tmp_path: Path, broker: EmbeddedBroker, lottery: Lottery
) -> None:
    """Mechanism X8: an order placed and paid with orders itself;
    what it told the queue is all that the lottery needs.
    """
    async with running_orders(f"{SQLITE_PREFIX}{tmp_path / 'orders.db'}") as shop:
        await shop.add_product()
        order = await shop.place("key")
        await shop.pay(order)
        told = [one for one in shop.publisher.messages if one.topic == TOPIC]
        groups = {subscription.group for subscription in shop.application.subscriptions}
        assert (await shop.application.use_cases.queries.order(order.order_id, SELLER)).payment_id is not None
    await tell(broker, *told)
    await consume(broker, lottery, has(RESERVED=1))
    assert await lottery.winners() == [(order.order_id, order.buyer_id, RESERVED)]
    assert GROUP not in groups


@pytest.mark.mechanism("X8")
def test_no_service_and_no_library_knows_of_the_lottery() -> None:
    """Mechanism X8: added without touching ordering."""
    root = Path(__file__).parents[3]
    sources = [path for folder in ("services", "libs") for path in (root / folder).rglob("src/**/*.py")]
    assert len(sources) > 300
    knowing = [path for path in sources if "lottery" in path.read_text(encoding="utf-8").lower()]
    assert knowing == []


def test_a_draw_is_fair_and_always_the_same() -> None:
    orders = [f"order-{number}" for number in range(10_000)]
    lucky = [order_id for order_id in orders if wins(order_id, SECRET, 10)]
    assert lucky == [order_id for order_id in orders if wins(order_id, SECRET, 10)]
    assert 900 < len(lucky) < 1_100
    assert lucky != [order_id for order_id in orders if wins(order_id, b"another secret", 10)]
    assert all(wins(order_id, SECRET, 1) for order_id in orders)


async def test_who_loses_gets_a_blank(tmp_path: Path, broker: EmbeddedBroker) -> None:
    engine = await open_database(str(tmp_path / "other.db"), GIFTS)
    lottery = Lottery(engine, broker.clock, SECRET, one_in=10**9)
    await tell(broker, paid("o-1"))
    assert await consume(broker, lottery, has(BLANK=1)) == Standing(GIFTS, {BLANK: 1})
    await engine.dispose()
