"""Two processes with one client id, against a broker with a real store in memory: the second one consumes nothing."""

from __future__ import annotations

import logging

import pytest

from mq_broker.core.members import HEARTBEAT_EXPIRY_MS
from mq_broker.embedded import EmbeddedBroker
from mqclient import BrokerRejectedError, ClientConfig, Message, Producer, PushConsumer, client_instance
from mqclient.testing import RecordingListener
from mqproto.codes import ResponseCode
from osenv import SimClock
from osenv.sim_clock import settle

TILL = ClientConfig(instance_name="till")


def another_process(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What begins from now on belongs to a process of this name."""
    monkeypatch.setattr(client_instance, "_instances", {})
    monkeypatch.setattr(client_instance, "process_name", lambda _: name)


def reader(broker: EmbeddedBroker, listener: RecordingListener, config: ClientConfig | None = TILL) -> PushConsumer:
    consumer = PushConsumer("readers", broker.url, client_config=config)
    consumer.subscribe("orders", "*")
    consumer.register_message_listener(listener)
    return consumer


async def with_topic(broker: EmbeddedBroker) -> None:
    async with Producer("shop", broker.url) as producer:
        await producer.send(Message("orders", b"first"))


async def test_the_second_process_of_an_instance_name_does_not_start_and_the_first_goes_on(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await with_topic(broker)
    another_process(monkeypatch, "1#a")
    async with reader(broker, RecordingListener()) as first:
        await settle()
        queues = first.queues
        another_process(monkeypatch, "1#b")
        with pytest.raises(BrokerRejectedError, match=r"'127\.0\.0\.1@till' is in use by process 1#a") as rejected:
            await reader(broker, RecordingListener()).start()
        assert rejected.value.code == ResponseCode.CLIENT_ID_IN_USE
        await settle()
        assert first.queues == queues


async def test_a_member_that_another_process_has_replaced_gives_its_queues_up_and_says_so(
    broker: EmbeddedBroker, clock: SimClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await with_topic(broker)
    another_process(monkeypatch, "1#a")
    async with reader(broker, RecordingListener()) as first:
        await settle()
        members = broker.broker.sessions.members
        members.expire(broker.broker.time.now_ms() + 2 * HEARTBEAT_EXPIRY_MS)  # the network held its heartbeats up
        another_process(monkeypatch, "1#b")
        async with reader(broker, RecordingListener()) as second:
            with caplog.at_level(logging.ERROR):
                for _ in range(60):
                    await clock.advance(1)
            assert (first.queues, len(second.queues)) == ([], 5)
            assert "this member consumes nothing: broker" in caplog.text
