"""Ready-made selectors, and what is done with a queue that the caller has chosen (mechanisms P13, P14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerUnavailableError,
    BrokerUnreachableError,
    IllegalArgumentError,
    Message,
    MessageQueue,
    MessageRejectedError,
    Producer,
    SelectMessageQueueByHash,
    SelectMessageQueueByRandom,
)
from mqclient.testing import FakeCluster
from mqproto.record import decode_record
from osenv import SeededRng

QUEUES = tuple(MessageQueue("orders", "broker-a", number) for number in range(8))
MESSAGE = Message("orders", b"x")


@pytest.mark.mechanism("P14")
@pytest.mark.parametrize(
    ("argument", "queue_id"),
    # Java: Math.abs(argument.hashCode() % 8), worked out by hand from String.hashCode
    [("a", 97 % 8), ("ab", (97 * 31 + 98) % 8), ("", 0), (17, (49 * 31 + 55) % 8), ("polygenelubricants", 0)],
)
def test_the_hash_is_javas(argument: Any, queue_id: int) -> None:
    assert SelectMessageQueueByHash()(QUEUES, MESSAGE, argument).queue_id == queue_id


def test_a_negative_hash_counts_without_its_sign() -> None:
    # "polygenelubricants".hashCode() is -2147483648, and -2147483648 % 7 is -2 in Java
    assert SelectMessageQueueByHash()(QUEUES[:7], MESSAGE, "polygenelubricants").queue_id == 2


def test_the_random_selector_meets_every_queue() -> None:
    select = SelectMessageQueueByRandom(SeededRng(1))
    assert {select(QUEUES, MESSAGE, None) for _ in range(200)} == set(QUEUES)
    assert SelectMessageQueueByRandom()(QUEUES, MESSAGE, None) in QUEUES


def by_order(queues: Sequence[MessageQueue], message: Message, order_id: int) -> MessageQueue:
    """The example of RocketMQ's documentation: orderId % queues."""
    del message
    return queues[order_id % len(queues)]


@pytest.mark.mechanism("P14")
async def test_messages_of_one_order_stand_in_one_queue_in_their_order() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        for step in range(5):
            for order in range(10):
                message = Message("orders", b"%d:%d" % (order, step))
                await producer.send(message, selector=by_order, selector_argument=order)
    for queue_id in range(4):
        bodies = [decode_record(record).body for record in broker.queues["orders", queue_id]]
        orders = {body.split(b":")[0] for body in bodies}
        assert {int(order) % 4 for order in orders} == {queue_id}
        for prefix in orders:
            own = [body for body in bodies if body.startswith(prefix + b":")]
            assert own == [b"%s:%d" % (prefix, step) for step in range(5)]


@pytest.mark.mechanism("P13")
async def test_a_chosen_queue_gets_the_message_and_one_try() -> None:
    cluster, (broker, _) = FakeCluster.of("broker-a", "broker-b")
    queue = MessageQueue("orders", "broker-a", 3)
    async with Producer("shop", cluster.url) as producer:
        results = [await producer.send(MESSAGE, queue=queue) for _ in range(3)]
        assert Counter(result.message_queue for result in results) == {queue: 3}
        broker.next_codes = [common_pb.SYSTEM_BUSY]
        with pytest.raises(BrokerUnavailableError):
            await producer.send(MESSAGE, queue=queue)
    assert len(broker.frames) == 4


@pytest.mark.mechanism("P13")
async def test_choices_that_make_no_sense_are_rejected() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        with pytest.raises(MessageRejectedError, match="topic 'orders' and the queue is bills@broker-a:0"):
            await producer.send(MESSAGE, queue=MessageQueue("bills", "broker-a", 0))
        with pytest.raises(IllegalArgumentError, match="two choices"):
            await producer.send(MESSAGE, queue=QUEUES[0], selector=by_order, selector_argument=1)
        with pytest.raises(MessageRejectedError, match="the selector failed: TypeError"):
            await producer.send(MESSAGE, selector=by_order, selector_argument=None)
        with pytest.raises(BrokerUnreachableError, match="'broker-z' is known"):
            await producer.send(MESSAGE, queue=MessageQueue("orders", "broker-z", 0))
    assert broker.bodies == []
