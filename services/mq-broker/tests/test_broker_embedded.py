"""`memory://`: the whole queue inside a test, with a clock that the test moves."""

from __future__ import annotations

import asyncio
import time

import pytest

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import common_pb2
from mq_broker.embedded import EmbeddedBroker
from mq_broker.embedded.embedded_broker import CallContext
from mqclient import (
    ClientConfig,
    ConsumeFromWhere,
    ConsumeStatus,
    IllegalArgumentError,
    Message,
    MessageExt,
    MQClientError,
    Producer,
    PushConsumer,
    UnknownTransportError,
)
from osenv import SimClock

HALF_AN_HOUR_S = 30 * 60
ADMIN = "/hourglass.mq.v1.AdminService"


class Inbox:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.bodies += [message.body for message in messages]
        return ConsumeStatus.CONSUME_SUCCESS


def consumer_of(url: str, topic: str, inbox: Inbox, group: str = "readers", name: str = "reader") -> PushConsumer:
    consumer = PushConsumer(
        group,
        url,
        client_config=ClientConfig(instance_name=name),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )
    consumer.subscribe(topic, "*")
    consumer.register_message_listener(inbox)
    return consumer


async def test_a_30_minute_close_takes_milliseconds_and_no_real_timer(
    broker: EmbeddedBroker, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    real_timers: list[object] = []
    inbox = Inbox()
    async with Producer("writers", broker.url) as producer, consumer_of(broker.url, "closings", inbox):
        monkeypatch.setattr(loop, "call_at", lambda *arguments, **_: real_timers.append(arguments))
        started = time.perf_counter()
        await producer.send(Message("closings", b"order 17", delay_level=16))
        await clock.advance(HALF_AN_HOUR_S - 0.001)
        assert inbox.bodies == []
        await clock.advance(0.002)
        assert inbox.bodies == [b"order 17"]
        took_s = time.perf_counter() - started
        monkeypatch.undo()
    assert real_timers == []
    print(f"30 minutes took {took_s * 1000:.0f} ms")


async def test_messages_survive_a_kill_and_clients_find_the_broker_again(
    broker: EmbeddedBroker, clock: SimClock
) -> None:
    inbox = Inbox()
    async with Producer("writers", broker.url) as producer, consumer_of(broker.url, "t", inbox):
        for number in range(10):
            await producer.send(Message("t", b"%d" % number))
        await clock.advance(1)
        await broker.lose_power()
        sending = asyncio.create_task(producer.send(Message("t", b"into the dark")))
        await clock.advance(4)
        with pytest.raises(MQClientError):
            await sending
        await broker.start()
        await clock.advance(40)
        await producer.send(Message("t", b"10"))
        await clock.advance(40)
        assert set(inbox.bodies) >= {b"%d" % number for number in range(11)}


async def test_two_brokers_of_different_names_do_not_see_each_other() -> None:
    async with EmbeddedBroker("one") as one, EmbeddedBroker("two") as two, Producer("writers", one.url) as producer:
        await producer.send(Message("t", b"x"))
        assert (one.broker.store.messages_stored, two.broker.store.messages_stored) == (1, 0)


async def test_an_unknown_name_and_a_second_broker_of_one_name_are_rejected(broker: EmbeddedBroker) -> None:
    with pytest.raises(IllegalArgumentError, match="no embedded broker 'unknown' runs"):
        await Producer("writers", "memory://unknown").start()
    with pytest.raises(ValueError, match="runs already"):
        await EmbeddedBroker(broker.name).start()


async def test_an_unknown_transport_is_rejected_with_those_that_there_are() -> None:
    with pytest.raises(UnknownTransportError, match=r"kafka://.*memory, mq"):
        await Producer("writers", "kafka://somewhere:9092").start()


async def test_it_is_a_master_by_itself_and_never_steps_down() -> None:
    async with EmbeddedBroker("alone") as embedded:
        status = await embedded.call(f"{ADMIN}/GetReplicaStatus", admin_pb.GetReplicaStatusRequest(), CallContext())
        assert (status.role, status.writable, status.ha_address) == (admin_pb.ASYNC_MASTER, True, "")
        assert (status.in_sync_replicas, list(status.replicas)) == (1, [])
        wrong = admin_pb.StepDownRequest()
        wrong.epoch.term = status.epoch.term + 1
        rejected = await embedded.call(f"{ADMIN}/StepDown", wrong, CallContext())
        assert rejected.code == common_pb2.SYSTEM_ERROR
        assert f"this broker is in epoch {status.epoch.term}.{status.epoch.start}" in rejected.remark
        assert (await embedded.call(f"{ADMIN}/GetBrokerStatus", admin_pb.GetBrokerStatusRequest(), None)).broker_id == 0
