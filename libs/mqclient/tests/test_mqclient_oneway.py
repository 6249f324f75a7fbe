"""One-way messages: no caller waits for their results (mechanism P3)."""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    IllegalStateError,
    Message,
    MessageQueue,
    MessageRejectedError,
    NoRouteError,
    Producer,
    ProducerConfig,
    TooManyRequestsError,
)
from mqclient.producer.producer import InFlightLimit
from mqclient.testing import FakeCluster
from osenv.sim_clock import settle


@pytest.mark.mechanism("P3")
async def test_it_returns_before_the_message_has_left() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"first"))
        broker.silent = True
        await producer.send_oneway(Message("orders", b"x"))
        assert len(broker.frames) == 1
        await settle()
        assert len(broker.frames) == 2
        broker.silent = False
        broker.answer_frame(broker.frames[1])
    assert sorted(broker.bodies) == [b"first", b"x"]


@pytest.mark.mechanism("P3")
async def test_it_is_not_tried_elsewhere_and_its_end_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mqclient.producer")
    cluster, brokers = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        for broker in brokers:
            broker.next_codes = [common_pb.SYSTEM_BUSY]
        await producer.send_oneway(Message("orders", b"x"))
        await settle()
    assert sum(len(broker.frames) for broker in brokers) == 1
    assert [body for broker in brokers for body in broker.bodies] == []
    assert "may be lost: broker" in caplog.text


async def test_it_goes_to_a_chosen_queue_in_order() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    queue = MessageQueue("orders", "broker-a", 1)
    async with Producer("shop", cluster.url) as producer:
        for number in range(20):
            await producer.send_oneway(Message("orders", b"%02d" % number), queue=queue)
    assert broker.bodies == [b"%02d" % number for number in range(20)]


async def test_a_tight_loop_waits_when_too_many_are_under_way() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    config = ProducerConfig(client_oneway_semaphore_value=10)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        for number in range(100):
            await producer.send_oneway(Message("orders", b"%d" % number))
    assert len(broker.bodies) == 100


@pytest.mark.mechanism("P3")
async def test_when_nothing_moves_it_is_rejected_after_the_timeout() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    config = ProducerConfig(client_oneway_semaphore_value=1, send_msg_timeout_s=1.0)
    async with Producer("shop", cluster.url, producer_config=config) as producer:
        await producer.send_oneway(Message("orders", b"x"))
        await cluster.clock.advance(0.5)
        second = asyncio.create_task(producer.send_oneway(Message("orders", b"y")))
        await cluster.clock.advance(0.4)
        assert not second.done()
        await cluster.clock.advance(0.2)  # the first one has ended without an answer, so there is room
        assert second.exception() is None
        limit = InFlightLimit("one-way", 1, 10, cluster.clock)
        limit.take(1)
        third = asyncio.create_task(limit.acquire(1, cluster.clock.monotonic() + 1.0))
        await cluster.clock.advance(1.1)
        assert isinstance(third.exception(), TooManyRequestsError)
        broker.silent = False
        broker.break_streams()


async def test_what_is_wrong_is_raised() -> None:
    cluster = FakeCluster()
    cluster.add_broker("broker-a", auto_create=False)
    producer = Producer("shop", cluster.url)
    with pytest.raises(IllegalStateError):
        await producer.send_oneway(Message("orders", b"x"))
    await producer.start()
    with pytest.raises(MessageRejectedError):
        await producer.send_oneway(Message("orders", b""))
    with pytest.raises(NoRouteError):
        await producer.send_oneway(Message("orders", b"x"))
    await producer.shutdown()


async def test_shutdown_waits_for_what_is_under_way_and_not_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    producer = Producer("shop", cluster.url, producer_config=ProducerConfig(send_msg_timeout_s=60.0))
    await producer.start()
    await producer.send_oneway(Message("orders", b"x"))
    await settle()
    leaving = asyncio.create_task(producer.shutdown(timeout_s=5.0))
    await cluster.clock.advance(3.0)
    assert not leaving.done()
    await cluster.clock.advance(2.1)
    await leaving
    assert "is closed with 1 one-way messages in flight" in caplog.text
