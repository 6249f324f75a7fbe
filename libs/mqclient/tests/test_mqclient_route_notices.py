"""A running consumer begins with a new topic, or with new queues, without a second of the clock going by."""

from __future__ import annotations

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, Message, MessageQueue, Producer, PushConsumer
from mqclient.testing import RecordingListener
from osenv import SimClock
from osenv.sim_clock import settle


def reader(broker: EmbeddedBroker, listener: RecordingListener) -> PushConsumer:
    consumer = PushConsumer("readers", broker.url)
    consumer.subscribe("orders", "*")
    consumer.register_message_listener(listener)
    return consumer


@pytest.mark.parametrize("seconds_before", [0, 1, 8], ids=lambda seconds: f"running for {seconds} s")
async def test_a_topic_that_its_first_message_makes_is_consumed_at_once(
    broker: EmbeddedBroker, clock: SimClock, seconds_before: int
) -> None:
    listener = RecordingListener()
    async with reader(broker, listener), Producer("shop", broker.url) as producer:
        await clock.advance(seconds_before)
        before = clock.monotonic()
        await producer.send(Message("orders", b"first"))
        await settle()
        assert listener.bodies == [b"first"]
        assert clock.monotonic() == before


async def test_queues_that_an_operator_adds_are_consumed_at_once(broker: EmbeddedBroker, clock: SimClock) -> None:
    listener = RecordingListener()
    async with Admin(broker.url) as admin, Producer("shop", broker.url) as producer:
        await admin.update_topic("orders", read_queue_count=1, write_queue_count=1)
        async with reader(broker, listener):
            await clock.advance(8)
            name = (await producer.send(Message("orders", b"old queue"))).message_queue.broker_name
            before = clock.monotonic()
            await admin.update_topic("orders", read_queue_count=2, write_queue_count=2)
            await producer.send(Message("orders", b"new queue"), queue=MessageQueue("orders", name, 1))
            await settle()
            assert listener.bodies == [b"old queue", b"new queue"]
            assert clock.monotonic() == before
