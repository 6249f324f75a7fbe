"""An operator removes queues under a producer that has their route: its sends go to the queues that are left."""

from __future__ import annotations

import pytest

from mq_broker.embedded import EmbeddedBroker
from mqclient import Admin, BrokerUnavailableError, Message, MessageQueue, Producer, SendResult
from osenv.sim_clock import settle

QUEUES, LEFT = 8, 2


class Recorder:
    """A callback that remembers."""

    def __init__(self) -> None:
        self.outcomes: list[SendResult | Exception] = []

    async def on_success(self, result: SendResult) -> None:
        self.outcomes.append(result)

    async def on_exception(self, error: Exception) -> None:
        self.outcomes.append(error)


async def reduce_under(producer: Producer, broker: EmbeddedBroker, *, read_queues: int) -> str:
    """The producer has the route of 8 queues; then 2 of them take messages. Returns the broker's name."""
    async with Admin(broker.url) as admin:
        await admin.update_topic("orders", read_queue_count=QUEUES, write_queue_count=QUEUES)
        first = await producer.send(Message("orders", b"first"), selector=lambda queues, *_: queues[0])
        await admin.update_topic("orders", read_queue_count=read_queues, write_queue_count=LEFT)
    return first.message_queue.broker_name


@pytest.mark.parametrize("read_queues", [QUEUES, LEFT], ids=["still readable", "gone"])
async def test_no_send_fails(broker: EmbeddedBroker, read_queues: int) -> None:
    async with Producer("shop", broker.url) as producer:
        await reduce_under(producer, broker, read_queues=read_queues)
        for _ in range(QUEUES):
            result = await producer.send(Message("orders", b"x"))
            assert result.message_queue.queue_id < read_queues


@pytest.mark.parametrize("read_queues", [QUEUES, LEFT], ids=["still readable", "gone"])
async def test_no_asynchronous_send_fails(broker: EmbeddedBroker, read_queues: int) -> None:
    recorder = Recorder()
    async with Producer("shop", broker.url) as producer:
        await reduce_under(producer, broker, read_queues=read_queues)
        for _ in range(QUEUES):
            producer.send_async(Message("orders", b"x"), recorder)
        await settle()
        assert [type(outcome) for outcome in recorder.outcomes] == [SendResult] * QUEUES


async def test_a_selector_chooses_anew_among_the_queues_that_are_left(broker: EmbeddedBroker) -> None:
    async with Producer("shop", broker.url) as producer:
        await reduce_under(producer, broker, read_queues=LEFT)
        places = [
            await producer.send(
                Message("orders", b"x"), selector=lambda queues, _, key: queues[key], selector_argument=-1
            )
            for _ in range(2)
        ]
        assert [place.message_queue.queue_id for place in places] == [LEFT - 1] * 2


async def test_a_queue_that_the_caller_names_is_rejected_with_the_queues_that_there_are(broker: EmbeddedBroker) -> None:
    async with Producer("shop", broker.url) as producer:
        name = await reduce_under(producer, broker, read_queues=LEFT)
        with pytest.raises(BrokerUnavailableError, match="'orders' has no queue 5; it has 0 to 1"):
            await producer.send(Message("orders", b"x"), queue=MessageQueue("orders", name, 5))
