"""Joining a group whose members subscribe differently, against a broker with a real store in memory (mechanism C4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, BrokerRejectedError, ClientConfig, Message, Producer, PushConsumer
from mqclient.admin import SubscriptionGroupConfig
from mqclient.testing import RecordingListener
from mqproto.codes import ResponseCode

T = TypeVar("T")


async def while_time_passes(broker: EmbeddedBroker, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; members wait for each other, and only this moves the clock."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await broker.clock.advance(0.1)
    return task.result()


def made(broker: EmbeddedBroker, name: str, tags: str, group: str = "closers") -> PushConsumer:
    consumer = PushConsumer(group, broker.url, client_config=ClientConfig(instance_name=name))
    consumer.subscribe("orders", tags)
    consumer.register_message_listener(RecordingListener())
    return consumer


@asynccontextmanager
async def member(broker: EmbeddedBroker, name: str, tags: str, group: str = "closers") -> AsyncIterator[PushConsumer]:
    consumer = made(broker, name, tags, group)
    await while_time_passes(broker, consumer.start())
    yield consumer
    await while_time_passes(broker, consumer.shutdown())


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> EmbeddedBroker:
    return EmbeddedBroker(request.node.name)


async def with_topic(broker: EmbeddedBroker) -> None:
    async with Producer("shop", broker.url) as producer:
        await producer.send(Message("orders", b"x", tag="paid"))


@pytest.mark.mechanism("C4")
async def test_a_start_that_differs_from_the_active_members_raises_the_difference(broker: EmbeddedBroker) -> None:
    async with broker:
        await with_topic(broker)
        async with member(broker, "one", "paid"):
            with pytest.raises(
                BrokerRejectedError, match="wants tag 'paid' of topic 'orders', this client wants tag 'cr"
            ) as it:
                await while_time_passes(broker, made(broker, "two", "created").start())
            assert it.value.code == ResponseCode.SUBSCRIPTION_NOT_CONSISTENT
            async with Admin(broker.url) as admin:
                assert [one.client_id for one in await admin.consumer_connections("closers")] == ["127.0.0.1@one"]


async def test_written_differently_it_is_the_same(broker: EmbeddedBroker) -> None:
    async with broker:
        await with_topic(broker)
        async with member(broker, "one", "b || a"), member(broker, "two", " a||b "), Admin(broker.url) as admin:
            assert len(await admin.consumer_connections("closers")) == 2


async def test_the_switch_lets_a_change_be_rolled_out(broker: EmbeddedBroker) -> None:
    async with broker:
        await with_topic(broker)
        async with member(broker, "one", "paid"), Admin(broker.url) as admin:
            config = SubscriptionGroupConfig("closers", different_subscriptions_allowed=True)
            await admin.update_subscription_group(config)
            async with member(broker, "two", "created"):
                connections = await admin.consumer_connections("closers")
                subscriptions = [one.data.subscriptions[1].expression for one in connections]
                assert subscriptions == ["paid", "created"]


async def test_other_groups_of_the_same_client_go_on(broker: EmbeddedBroker) -> None:
    async with broker:
        await with_topic(broker)
        async with member(broker, "one", "paid"), member(broker, "two", "*", "others") as others:
            with pytest.raises(BrokerRejectedError):
                await while_time_passes(broker, made(broker, "two", "created").start())
            async with Admin(broker.url) as admin:
                assert [one.client_id for one in await admin.consumer_connections("others")] == ["127.0.0.1@two"]
            assert others.queues
