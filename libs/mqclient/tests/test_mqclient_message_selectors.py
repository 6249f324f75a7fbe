"""Subscriptions by conditions on properties, on a broker with a real store in memory (mechanism F2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    BrokerRejectedError,
    BrokerUnavailableError,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    MessageSelector,
    Producer,
    PushConsumer,
)
from mqproto.codes import PullStatus
from osenv import SimClock

LARGE_IN_THE_EAST = MessageSelector.by_sql("amount >= 10 AND region = 'east'")


@pytest_asyncio.fixture
async def sql_broker(clock: SimClock, request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedBroker]:
    """A running broker that filters by properties."""
    async with EmbeddedBroker(request.node.name, clock=clock, property_filter_enabled=True) as embedded:
        yield embedded


class Inbox:
    def __init__(self) -> None:
        self.amounts: list[int] = []
        self.came = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.amounts += [int(message.properties["amount"]) for message in messages]
        self.came.set()
        return ConsumeStatus.CONSUME_SUCCESS

    async def has(self, count: int, clock: SimClock) -> None:
        """Wait until so many messages have come; time moves on meanwhile."""
        async with asyncio.timeout(20):
            while len(self.amounts) < count:
                await clock.advance(0.1)


def order(amount: int) -> Message:
    return Message("orders", b"x", properties={"amount": str(amount), "region": "east" if amount % 2 else "west"})


def consumer(broker: EmbeddedBroker, wanted: MessageSelector, inbox: Inbox) -> PushConsumer:
    one = PushConsumer("readers", broker.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    one.subscribe("orders", wanted)
    one.register_message_listener(inbox)
    return one


@pytest.mark.mechanism("F2")
async def test_exactly_the_wanted_messages_come_and_the_offsets_pass_the_others(
    sql_broker: EmbeddedBroker, clock: SimClock
) -> None:
    inbox = Inbox()
    async with Producer("shop", sql_broker.url) as producer:
        for amount in range(40):
            await producer.send(order(amount))
        async with consumer(sql_broker, LARGE_IN_THE_EAST, inbox):
            await inbox.has(15, clock)
            for amount in range(40, 60):  # these wake polls that are held
                await producer.send(order(amount))
            await inbox.has(25, clock)
    assert sorted(inbox.amounts) == [amount for amount in range(60) if amount >= 10 and amount % 2]
    async with Admin(sql_broker.url) as admin:
        stats = await admin.consume_stats("readers", "orders")
    assert sum(queue.broker_offset for queue in stats.queues) == 60
    assert [queue.consumer_offset for queue in stats.queues] == [queue.broker_offset for queue in stats.queues]


async def test_an_admin_pulls_by_a_condition(sql_broker: EmbeddedBroker) -> None:
    async with Producer("shop", sql_broker.url) as producer, Admin(sql_broker.url) as admin:
        sent = {amount: await producer.send(order(amount)) for amount in range(8)}
        for result in sent.values():
            queue: MessageQueue = result.message_queue
            _, end = await admin.queue_offsets(queue)
            pulled = await admin.pull(queue, 0, expression=MessageSelector.by_sql("amount BETWEEN 2 AND 5"))
            wanted = [amount for amount in range(2, 6) if sent[amount].message_queue == queue]
            assert [int(message.properties["amount"]) for message in pulled.messages] == wanted
            assert pulled.next_begin_offset == end
            assert pulled.status is (PullStatus.FOUND if wanted else PullStatus.NO_MATCHED_MSG)


async def test_a_condition_that_cannot_be_parsed_is_rejected_at_the_start_with_the_place(
    sql_broker: EmbeddedBroker,
) -> None:
    wrong = MessageSelector.by_sql("amount >= 10 AND region =")
    place = "wrong at character 26: expected a value after '=', found the end"
    async with Producer("shop", sql_broker.url) as producer, Admin(sql_broker.url) as admin:
        queue = (await producer.send(order(1))).message_queue
        with pytest.raises(BrokerRejectedError, match=place):
            await consumer(sql_broker, wrong, Inbox()).start()
        with pytest.raises(BrokerRejectedError, match=place):
            await admin.pull(queue, 0, expression=wrong)


async def test_a_broker_without_property_filter_rejects_it_at_the_start(broker: EmbeddedBroker) -> None:
    async with Producer("shop", broker.url) as producer, Admin(broker.url) as admin:
        queue = (await producer.send(order(1))).message_queue
        with pytest.raises(BrokerRejectedError, match="set enablePropertyFilter=true"):
            await consumer(broker, LARGE_IN_THE_EAST, Inbox()).start()
        with pytest.raises(BrokerUnavailableError, match="set enablePropertyFilter=true"):
            await admin.pull(queue, 0, expression=LARGE_IN_THE_EAST)
