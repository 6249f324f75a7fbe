"""Sending in order: one batch of a chosen queue at a time, and none without the one before it (mechanisms P13, P14)."""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerUnavailableError,
    EarlierSendFailedError,
    Message,
    MessageQueue,
    NotSentError,
    Producer,
    RequestTimeoutError,
    RetryableError,
    SendResult,
)
from mqclient.testing import FakeBroker, FakeCluster
from osenv.sim_clock import settle

QUEUE = MessageQueue("orders", "broker-a", 1)


def start(
    producer: Producer, *bodies: bytes, queue: MessageQueue | None = QUEUE, timeout: float = 3.0, delay_level: int = 0
) -> list[asyncio.Task[SendResult]]:
    return [
        asyncio.create_task(
            producer.send(Message("orders", body, delay_level=delay_level), queue=queue, timeout=timeout)
        )
        for body in bodies
    ]


def counts(broker: FakeBroker) -> list[list[int]]:
    return [[batch.count for batch in frame.batches] for frame in broker.frames]


@pytest.mark.mechanism("P14")
async def test_one_batch_of_a_chosen_queue_is_unanswered_at_a_time() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = start(producer, b"a", b"b")
        await settle()
        sends += start(producer, b"c", b"d", b"e")
        await settle()
        assert counts(broker) == [[2]]
        broker.answer_frame(broker.frames[0])
        await settle()
        assert counts(broker) == [[2], [3]]
        broker.answer_frame(broker.frames[1])
        await asyncio.gather(*sends)
    assert broker.bodies == [b"a", b"b", b"c", b"d", b"e"]


async def test_delayed_messages_of_a_chosen_queue_go_one_by_one() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await asyncio.gather(*start(producer, b"a", b"b", b"c", delay_level=3))
    assert counts(broker) == [[1]] * 3


async def test_other_queues_do_not_wait_for_it() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = start(producer, b"a")
        await settle()
        sends += start(producer, b"b")
        sends += start(producer, b"other", queue=QUEUE._replace(queue_id=2))
        await settle()
        assert [[batch.queue_id for batch in frame.batches] for frame in broker.frames] == [[1], [2]]
        for answered in range(3):
            broker.answer_frame(broker.frames[answered])
            await settle()
        await asyncio.gather(*sends)


async def test_a_message_that_may_go_anywhere_does_not_overtake_those_of_its_queue() -> None:
    """Numbers of a queue only rise, so it waits with them; it does not fail with them."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    queue = QUEUE._replace(queue_id=0)
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = start(producer, b"a", queue=queue)
        await settle()
        sends += start(producer, b"b", queue=queue) + start(producer, b"anywhere", queue=None)
        await settle()
        broker.next_codes = [common_pb.SYSTEM_BUSY]
        broker.silent = False
        broker.answer_frame(broker.frames[0])
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [BrokerUnavailableError, EarlierSendFailedError, SendResult]
    assert broker.bodies == [b"anywhere"]


@pytest.mark.mechanism("P14")
async def test_when_a_batch_is_rejected_the_waiting_ones_of_its_queue_fail_and_say_so() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = start(producer, b"a", b"b")
        await settle()
        sends += start(producer, b"c", b"d") + start(producer, b"other", queue=QUEUE._replace(queue_id=2))
        await settle()
        broker.next_codes = [common_pb.SYSTEM_BUSY]
        broker.silent = False
        broker.answer_frame(broker.frames[0])
        broker.answer_frame(broker.frames[1])
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert [type(one) for one in outcomes] == [BrokerUnavailableError] * 2 + [EarlierSendFailedError] * 2 + [
            SendResult
        ]
        assert isinstance(outcomes[2], RetryableError)
        assert "an earlier message to orders@broker-a:1 failed: " in str(outcomes[2])
        assert "SYSTEM_BUSY" in str(outcomes[2])
        await asyncio.gather(*start(producer, b"a", b"b", b"c", b"d"))
    assert broker.bodies == [b"a", b"b", b"c", b"d", b"other"]


async def test_when_a_batch_is_given_up_the_waiting_ones_fail() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        (first,) = start(producer, b"a", timeout=1.0)
        await settle()
        (second,) = start(producer, b"b")
        await cluster.clock.advance(1.1)
        assert isinstance(first.exception(), RequestTimeoutError)
        assert isinstance(second.exception(), EarlierSendFailedError)
        (third,) = start(producer, b"c")
        await settle()
        assert counts(broker) == [[1]]  # the first batch may still be stored, and nothing overtakes it
        broker.silent = False
        broker.break_streams()
        await third
    assert broker.bodies == [b"c"]


async def test_when_a_message_could_not_leave_in_time_those_behind_it_fail() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        first = start(producer, b"a")
        await settle()
        waiting = start(producer, b"b", timeout=1.0) + start(producer, b"c")
        await cluster.clock.advance(1.1)
        broker.silent = False
        broker.answer_frame(broker.frames[0])
        outcomes = await asyncio.gather(*first, *waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SendResult, NotSentError, EarlierSendFailedError]
    assert broker.bodies == [b"a"]


async def test_a_cancelled_message_takes_no_other_with_it() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = start(producer, b"a")
        await settle()
        sends += start(producer, b"b", b"c")
        await settle()
        sends[1].cancel()
        broker.silent = False
        broker.answer_frame(broker.frames[0])
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SendResult, asyncio.CancelledError, SendResult]
    assert broker.bodies == [b"a", b"c"]


async def test_a_break_keeps_the_order_and_fails_nothing() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = start(producer, b"a")
        await settle()
        sends += start(producer, b"b", b"c")
        await settle()
        broker.silent = False
        broker.break_streams()
        await asyncio.gather(*sends)
    assert broker.bodies == [b"a", b"b", b"c"]
