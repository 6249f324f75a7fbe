"""Waiting for a member's queues, leaving a topic, and looking at states and queues, on a broker with a real store."""

from __future__ import annotations

import asyncio

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    ClientConfig,
    IllegalStateError,
    Message,
    Producer,
    PushConsumer,
    ServiceState,
)
from mqclient.testing import RecordingListener
from osenv import SimClock
from osenv.sim_clock import settle


def reader(broker: EmbeddedBroker, listener: RecordingListener, *topics: str, name: str = "a") -> PushConsumer:
    consumer = PushConsumer("readers", broker.url, client_config=ClientConfig(instance_name=name))
    for topic in topics:
        consumer.subscribe(topic)
    consumer.register_message_listener(listener)
    return consumer


async def made(broker: EmbeddedBroker, *topics: str) -> None:
    async with Admin(broker.url) as admin:
        for topic in topics:
            await admin.update_topic(topic, read_queue_count=2, write_queue_count=2)


class TestWaitAssigned:
    async def test_it_returns_when_the_member_has_its_queues(self, broker: EmbeddedBroker) -> None:
        await made(broker, "orders")
        async with reader(broker, RecordingListener(), "orders") as consumer:
            queues = await consumer.wait_assigned()
            assert [queue.queue_id for queue in queues if queue.topic == "orders"] == [0, 1]

    async def test_a_member_that_joins_others_waits_until_they_have_handed_over(
        self, broker: EmbeddedBroker, clock: SimClock
    ) -> None:
        await made(broker, "orders")
        async with reader(broker, RecordingListener(), "orders") as first:
            await first.wait_assigned()
            async with reader(broker, RecordingListener(), "orders", name="b") as second:
                waiting = asyncio.ensure_future(second.wait_assigned())
                await settle()
                assert not waiting.done()
                await clock.advance(0.5)
                assert [queue.queue_id for queue in await waiting if queue.topic == "orders"] == [1]

    async def test_a_topic_that_does_not_exist_is_waited_for(self, broker: EmbeddedBroker, clock: SimClock) -> None:
        async with reader(broker, RecordingListener(), "orders") as consumer:
            waiting = asyncio.ensure_future(consumer.wait_assigned(1.0))
            await clock.advance(1.1)
            with pytest.raises(TimeoutError, match="consumer readers has not got its queues within 1 s"):
                await waiting
            waiting = asyncio.ensure_future(consumer.wait_assigned())
            await made(broker, "orders")
            await settle()
            assert len(await waiting) == 3

    async def test_only_a_running_consumer_has_queues_to_wait_for(self, broker: EmbeddedBroker) -> None:
        with pytest.raises(IllegalStateError, match="CREATE_JUST"):
            await reader(broker, RecordingListener(), "orders").wait_assigned()


class TestUnsubscribe:
    async def test_a_running_consumer_gives_the_topic_up_and_goes_on_with_the_others(
        self, broker: EmbeddedBroker, clock: SimClock
    ) -> None:
        await made(broker, "orders", "bills")
        listener = RecordingListener()
        async with reader(broker, listener, "orders", "bills") as consumer, Producer("shop", broker.url) as producer:
            consumer.unsubscribe("bills")
            await producer.send(Message("bills", b"not wanted"))
            await producer.send(Message("orders", b"wanted"))
            for _ in range(60):
                await clock.advance(1)
            assert {queue.topic for queue in consumer.queues} == {"orders", "%RETRY%readers"}
            assert listener.bodies == [b"wanted"]
            (member,) = broker.broker.sessions.members.connections("readers")
            assert member.consumer.topics() == {"orders", "%RETRY%readers"}

    async def test_before_the_start_it_takes_the_subscription_back(self, broker: EmbeddedBroker) -> None:
        await made(broker, "orders", "bills")
        consumer = reader(broker, RecordingListener(), "orders", "bills")
        consumer.unsubscribe("bills")
        async with consumer:
            assert {queue.topic for queue in await consumer.wait_assigned()} >= {"orders"}
            assert "bills" not in {queue.topic for queue in consumer.queues}


async def test_a_producer_names_the_queues_that_a_send_can_take(broker: EmbeddedBroker) -> None:
    await made(broker, "orders")
    async with Producer("shop", broker.url) as producer:
        queues = await producer.fetch_publish_message_queues("orders")
        assert [(queue.topic, queue.queue_id) for queue in queues] == [("orders", 0), ("orders", 1)]
        assert (await producer.send(Message("orders", b"x"), queue=queues[1])).message_queue == queues[1]
    with pytest.raises(IllegalStateError):
        await producer.fetch_publish_message_queues("orders")


async def test_every_client_tells_its_state(broker: EmbeddedBroker) -> None:
    await made(broker, "orders")
    clients = (Producer("shop", broker.url), Admin(broker.url), reader(broker, RecordingListener(), "orders"))
    for client in clients:
        states = [client.state]
        async with client:
            states.append(client.state)
        states.append(client.state)
        assert states == [ServiceState.CREATE_JUST, ServiceState.RUNNING, ServiceState.SHUTDOWN]
