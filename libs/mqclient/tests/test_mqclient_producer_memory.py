"""What a producer does, on a broker with a real store in memory: compression, batches, lost answers, masters only."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from mq_broker.embedded import EmbeddedBroker
from mq_broker.testing import read_all
from mqclient import (
    ConsumeFromWhere,
    ConsumeStatus,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PushConsumer,
    TransactionProducer,
)
from mqclient.testing import RecordingTransactionListener
from mqproto.properties import PRODUCER_SEQUENCE, decode_properties
from mqproto.record import FLAG_COMPRESSED
from osenv import SimClock
from osenv.sim_clock import settle

TEXT = b"a body that can be made smaller; " * 1_000
COMMIT = LocalTransactionState.COMMIT_MESSAGE


class Inbox:
    """Remembers what it got, and fails the first time that it gets it."""

    def __init__(self) -> None:
        self.messages: list[MessageExt] = []

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.messages += messages
        return ConsumeStatus.CONSUME_SUCCESS if messages[0].reconsume_times else ConsumeStatus.RECONSUME_LATER


@pytest.mark.mechanism("M1")
async def test_a_compressed_body_arrives_as_it_was_also_delayed_in_a_transaction_and_after_a_retry(
    broker: EmbeddedBroker, clock: SimClock
) -> None:
    inbox = Inbox()
    consumer = PushConsumer("readers", broker.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("orders", "*")
    consumer.register_message_listener(inbox)
    listener = RecordingTransactionListener(COMMIT, COMMIT)
    async with TransactionProducer("shop", broker.url, transaction_listener=listener) as producer, consumer:
        await producer.send(Message("orders", TEXT, tag="plain"))
        await producer.send(Message("orders", TEXT, tag="delayed", delay_level=3))
        await producer.send_message_in_transaction(Message("orders", TEXT, tag="transaction"))
        for _ in range(60):
            await clock.advance(1)
        await settle()
    stored = [record for queue_id in range(4) for record in await read_all(broker.broker, "orders", queue_id)]
    assert len(stored) == 3
    assert all(record.sys_flag & FLAG_COMPRESSED for record in stored)
    assert all(len(record.body) < 1_000 for record in stored)
    assert len(inbox.messages) == 6
    assert {message.body for message in inbox.messages} == {TEXT}
    assert sorted((message.tag or "", message.reconsume_times) for message in inbox.messages) == [
        (tag, times) for tag in ("delayed", "plain", "transaction") for times in (0, 1)
    ]


@pytest.mark.mechanism("P16")
async def test_a_batch_stands_whole_and_without_a_gap_in_the_log(broker: EmbeddedBroker, clock: SimClock) -> None:
    messages = [Message("orders", b"%d" % number) for number in range(200)]
    async with Producer("shop", broker.url) as producer:
        others = [asyncio.create_task(producer.send(Message("orders", b"other"))) for _ in range(50)]
        result = await producer.send_batch(messages)
        await asyncio.gather(*others)
    stored = await read_all(broker.broker, "orders", result.message_queue.queue_id)
    own = stored[result.queue_offset : result.queue_offset + 200]
    assert [record.body for record in own] == [message.body for message in messages]
    assert [(record.queue_offset, record.log_offset) for record in own] == list(result.places)
    for one, following in itertools.pairwise(own):
        assert one.log_offset + one.size == following.log_offset


async def test_an_answer_that_was_lost_costs_no_second_copy(broker: EmbeddedBroker, clock: SimClock) -> None:
    acknowledge = broker.broker.producing.acknowledge
    lost = asyncio.Event()

    async def lose(*_: object) -> None:
        lost.set()
        await asyncio.Event().wait()

    queue = MessageQueue("orders", "broker-a", 0)
    async with Producer("shop", broker.url) as producer:
        await producer.send(Message("orders", b"before"), queue=queue)
        broker.broker.producing.acknowledge = lose  # type: ignore[method-assign, assignment]
        sends = [asyncio.create_task(producer.send(Message("orders", b"%d" % n), queue=queue)) for n in range(5)]
        async with asyncio.timeout(5):
            await lost.wait()
        broker.broker.producing.acknowledge = acknowledge  # type: ignore[method-assign]
        broker.break_connections()
        results = await asyncio.gather(*sends)
    stored = await read_all(broker.broker, "orders", 0)
    assert [record.body for record in stored] == [b"before", b"0", b"1", b"2", b"3", b"4"]
    assert [result.queue_offset for result in results] == [1, 2, 3, 4, 5]
    numbers = [decode_properties(record.properties)[PRODUCER_SEQUENCE].split(":")[2] for record in stored]
    assert numbers == ["1", "2", "3", "4", "5", "6"]


@pytest.mark.mechanism("P18")
async def test_a_thousand_tasks_share_a_producer(broker: EmbeddedBroker, clock: SimClock) -> None:
    async with Producer("shop", broker.url) as producer:
        results = await asyncio.gather(*(producer.send(Message("orders", b"%d" % n)) for n in range(1_000)))
    stored = [record for queue_id in range(4) for record in await read_all(broker.broker, "orders", queue_id)]
    assert sorted(int(record.body) for record in stored) == list(range(1_000))
    assert len({(result.message_queue, result.queue_offset) for result in results}) == 1_000


@pytest.mark.parametrize("wait", [True, False])
async def test_a_message_says_whether_it_waits_for_the_disk(
    broker: EmbeddedBroker, clock: SimClock, wait: bool
) -> None:
    async with Producer("shop", broker.url) as producer:
        result = await producer.send(Message("orders", b"x", wait_store_msg_ok=wait))
    (record,) = await read_all(broker.broker, "orders", result.message_queue.queue_id)
    assert MessageExt(record, "broker-a").wait_store_msg_ok is wait
