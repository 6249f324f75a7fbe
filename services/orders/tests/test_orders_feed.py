"""Streams of order events: what they say, when they end, and how many there may be."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from orders.domain.errors import UnknownOrderError
from orders.domain.order import Order, OrderStatus
from orders.service.order_feed import HEARTBEAT_S, STREAM_MAX_S, OrderFeed, OrderStream
from orders.service.payments import FeedClosedError, TooManyStreamsError
from orders.testing import BUYER, SELLER, RunningOrders, caller, running_orders
from osenv.sim_clock import settle
from servicekit.auth import Caller
from servicekit.errors import StorageUnavailableError
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl


class Follower:
    """Reads a stream beside the test; None is a heartbeat."""

    def __init__(self, stream: OrderStream) -> None:
        self.seen: list[OrderStatus | None] = []
        self.stream = stream
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            async with aclosing(self.stream.states()) as states:
                async for order in states:
                    self.seen.append(None if order is None else order.status)
        finally:
            self.stream.close()

    async def reads(self, *statuses: OrderStatus | None) -> None:
        """Wait until exactly this was seen."""
        await until(lambda: len(self.seen) >= len(statuses))
        assert self.seen == list(statuses)


async def follower_of(orders: RunningOrders, order: Order, reader: Caller = BUYER) -> Follower:
    return Follower(await orders.application.feed.open(order.order_id, reader))


async def test_a_follower_sees_the_present_and_then_every_change_to_the_end(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        follower = await follower_of(orders, order)
        seen = [OrderStatus.PENDING_PAYMENT]
        await follower.reads(*seen)
        await orders.pay(order)
        await orders.deliver()
        seen.append(OrderStatus.AWAITING_SHIPMENT)
        await follower.reads(*seen)
        await orders.application.use_cases.ship_order(order.order_id, SELLER)
        await orders.deliver()
        seen.append(OrderStatus.SHIPPED)
        await follower.reads(*seen)
        await orders.application.use_cases.confirm_receipt(order.order_id, BUYER)
        await orders.deliver()
        await follower.reads(*seen, OrderStatus.COMPLETED)
        await follower.task  # the order is final: the stream has ended by itself
        assert orders.application.feed.open_streams == 0


async def test_an_order_that_is_final_is_told_once(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.application.use_cases.close_order.cancel(order.order_id, BUYER, None)
        follower = await follower_of(orders, order)
        await follower.task
        assert follower.seen == [OrderStatus.CLOSED]


async def test_a_change_that_no_message_told_of_comes_with_the_next_heartbeat(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        follower = await follower_of(orders, order)
        await follower.reads(OrderStatus.PENDING_PAYMENT)
        await until(lambda: orders.clock.timers > 0)
        await orders.clock.advance(HEARTBEAT_S)
        await follower.reads(OrderStatus.PENDING_PAYMENT, None)
        await orders.pay(order)
        await until(lambda: orders.clock.timers > 0)
        await orders.clock.advance(HEARTBEAT_S)
        await follower.reads(OrderStatus.PENDING_PAYMENT, None, OrderStatus.AWAITING_SHIPMENT)
        orders.application.feed.close()
        await follower.task


async def test_a_message_that_comes_twice_or_late_is_no_change(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        follower = await follower_of(orders, order)
        await follower.reads(OrderStatus.PENDING_PAYMENT)
        for _ in range(3):
            orders.application.feed.tell(order.order_id)
            await follower.reads(OrderStatus.PENDING_PAYMENT, None)  # not more than a sign of life
            follower.seen.pop()
        orders.application.feed.tell("an order without followers")
        orders.application.feed.close()
        await follower.task
        assert follower.seen == [OrderStatus.PENDING_PAYMENT]


async def test_an_order_is_not_followed_without_access(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        feed = orders.application.feed
        for order_id in (order.order_id, "ghost"):
            with pytest.raises(UnknownOrderError):
                await feed.open(order_id, caller("buyer", "another-buyer"))
        assert feed.open_streams == 0
        (await feed.open(order.order_id, SELLER)).close()


class OneOrder:
    """Implements `OrderReader`: gives `answer`, or raises it."""

    def __init__(self, answer: Order) -> None:
        self.answer: Order | Exception = answer
        self.reads = 0

    async def order(self, _order_id: str, _caller: Caller) -> Order:
        self.reads += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def test_streams_are_bounded_for_each_caller_and_for_all(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        feed = OrderFeed(OneOrder(order), orders.clock, streams_max=3, streams_per_caller_max=2)
        ann, bob = caller("buyer", "ann"), caller("buyer", "bob")
        tabs = [await feed.open(order.order_id, ann) for _ in range(2)]
        with pytest.raises(TooManyStreamsError):
            await feed.open(order.order_id, ann)
        last = await feed.open(order.order_id, bob)
        with pytest.raises(TooManyStreamsError):
            await feed.open(order.order_id, bob)
        tabs[0].close()
        tabs[0].close()  # a second time gives no second place
        assert feed.open_streams == 2
        (await feed.open(order.order_id, ann)).close()
        last.close()
        tabs[1].close()
        assert feed.open_streams == 0


async def test_many_who_come_at_the_same_moment_do_not_pass_the_bound_together(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        feed = OrderFeed(orders.application.use_cases.queries, orders.clock, streams_max=5)
        opened = await asyncio.gather(
            *(feed.open(order.order_id, caller("buyer", BUYER.subject)) for _ in range(9)), return_exceptions=True
        )
        rejected = [one for one in opened if isinstance(one, TooManyStreamsError)]
        assert (len(rejected), feed.open_streams) == (4, 5)


async def test_a_closed_feed_ends_its_streams_and_opens_no_more(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        followers = [await follower_of(orders, order) for _ in range(3)]
        for follower in followers:
            await follower.reads(OrderStatus.PENDING_PAYMENT)
        orders.application.feed.close()
        await asyncio.gather(*(follower.task for follower in followers))
        with pytest.raises(FeedClosedError):
            await orders.application.feed.open(order.order_id, BUYER)


async def test_a_stream_ends_after_a_time_because_tokens_do(new_database_url: NewDatabaseUrl) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        feed = OrderFeed(OneOrder(order), orders.clock)
        follower = Follower(await feed.open(order.order_id, BUYER))
        for _ in range(int(STREAM_MAX_S / HEARTBEAT_S)):
            await settle()
            await orders.clock.advance(HEARTBEAT_S)
        await follower.task
        assert feed.open_streams == 0


async def test_a_database_that_is_away_makes_a_stream_late_and_does_not_end_it(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        await orders.add_product()
        order = await orders.place("k")
        await orders.pay(order)
        reader = OneOrder(order)
        feed = OrderFeed(reader, orders.clock)
        follower = Follower(await feed.open(order.order_id, BUYER))
        await follower.reads(OrderStatus.PENDING_PAYMENT)
        reader.answer = StorageUnavailableError("away")
        feed.tell(order.order_id)
        await follower.reads(OrderStatus.PENDING_PAYMENT, None)
        reader.answer = await orders.order(order.order_id)
        feed.tell(order.order_id)
        await follower.reads(OrderStatus.PENDING_PAYMENT, None, OrderStatus.AWAITING_SHIPMENT)
        feed.close()
        await follower.task
