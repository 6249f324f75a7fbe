"""Which messages share a batch: brokers reject mixed ones, and only the base offset of a batch is known.

Mechanisms D1, T2.
"""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient import BrokerRejectedError, Message, Producer, SendResult, TransactionProducer
from mqclient.connection.frames import FRAME_BATCHES_MAX
from mqclient.message import MessageQueue
from mqclient.testing import FakeBroker, FakeCluster, RecordingTransactionListener
from mqproto.properties import DELAY, TIMER_DELAY_MS, UNIQ_KEY, decode_properties, encode_properties
from mqproto.record import decode_record, encode_record
from osenv.sim_clock import settle


def first_queue(queues: object, message: Message, argument: object) -> MessageQueue:
    del message, argument
    assert isinstance(queues, tuple)
    queue: MessageQueue = queues[0]
    return queue


def stored_offsets(broker: FakeBroker) -> dict[str, tuple[int, int]]:
    """Queue and log offset of every stored message, by unique id."""
    records = [decode_record(record) for queue in broker.queues.values() for record in queue]
    return {decode_properties(one.properties)[UNIQ_KEY]: (one.queue_offset, one.log_offset) for one in records}


def counts(frame: broker_pb.ProduceRequest) -> list[int]:
    return [batch.count for batch in frame.batches]


def offsets_of(results: list[SendResult]) -> dict[str, tuple[int, int]]:
    return {result.message_id: (result.queue_offset, result.log_offset) for result in results}


async def test_100_delayed_sends_at_once_to_one_queue_succeed_and_know_their_places() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        sends = (
            producer.send(Message("orders", b"%d" % n, delay_level=1 + n % 18), selector=first_queue)
            for n in range(100)
        )
        results = await asyncio.gather(*sends)
    assert sorted(broker.bodies) == sorted(b"%d" % n for n in range(100))
    assert {count for frame in broker.frames for count in counts(frame)} == {1}
    assert offsets_of(results) == stored_offsets(broker)


async def test_plain_messages_share_a_batch_up_to_the_next_delayed_one() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        levels = [0, 0, 3, 0, 3, 16, 0]
        sends = (producer.send(Message("orders", b"%d" % n, delay_level=level)) for n, level in enumerate(levels))
        results = await asyncio.gather(*sends)
    (frame,) = broker.frames
    assert counts(frame) == [2, 1, 1, 1, 1, 1]
    assert offsets_of(results) == stored_offsets(broker)


async def test_half_messages_travel_alone() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with TransactionProducer(
        "shop", cluster.url, transaction_listener=RecordingTransactionListener()
    ) as producer:
        halves = [producer.send_message_in_transaction(Message("orders", b"half")) for _ in range(20)]
        plain = [producer.send(Message("orders", b"plain")) for _ in range(8)]
        await asyncio.gather(*halves, *plain)
    assert broker.bodies.count(b"half") == 20
    assert broker.bodies.count(b"plain") == 8
    assert sorted(count for frame in broker.frames for count in counts(frame)) == [1] * 20 + [2] * 4


async def test_a_frame_has_no_more_batches_than_a_broker_takes() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = [
            asyncio.create_task(producer.send(Message("orders", b"%d" % n, delay_level=16)))
            for n in range(5 * FRAME_BATCHES_MAX)
        ]
        await settle()
        for answered in range(5):
            broker.answer_frame(broker.frames[answered])
            await settle()
        results = await asyncio.gather(*sends)
    assert [len(frame.batches) for frame in broker.frames] == [FRAME_BATCHES_MAX] * 5
    assert offsets_of(results) == stored_offsets(broker)


async def test_the_fake_broker_rejects_what_a_real_one_rejects() -> None:
    _, (broker,) = FakeCluster.of("broker-a")

    def record(properties: dict[str, str], sys_flag: int = 0) -> bytes:
        return encode_record(
            topic=b"orders",
            body=b"x",
            properties=encode_properties(properties),
            queue_id=0,
            born_timestamp_ms=0,
            born_ip=0,
            sys_flag=sys_flag,
        )

    half = {"UNIQ_KEY": "a", "TRAN_MSG": "true", "PGROUP": "shop"}
    illegal = {
        "mixes delays": [record({DELAY: "3"}), record({})],
        "the batch mixes": [record({}), record({TIMER_DELAY_MS: "3"})],
        "batch of its own": [record(half, 4), record(half, 4)],
        "has the properties": [record({"UNIQ_KEY": "a"}, 4)],
        "without the prepared bit": [record(half)],
    }
    for sentence, records in illegal.items():
        batch = broker_pb.RecordBatch(topic="orders", count=len(records), records=b"".join(records))
        (result,) = broker.produce(broker_pb.ProduceRequest(batches=[batch])).results
        assert sentence in result.remark
    batch = broker_pb.RecordBatch(topic="orders", count=1, records=record({}))
    results = broker.produce(broker_pb.ProduceRequest(batches=[batch] * (FRAME_BATCHES_MAX + 1))).results
    assert {result.remark for result in results} == {"the frame has too many batches"}
    assert broker.bodies == []


async def test_a_delayed_message_that_is_rejected_takes_no_other_with_it() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.next_codes = [0, 13, 0]
    async with Producer("shop", cluster.url) as producer:
        sends = (producer.send(Message("orders", b"%d" % n, delay_level=3)) for n in range(3))
        first, second, third = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(first, SendResult)
    assert isinstance(third, SendResult)
    with pytest.raises(BrokerRejectedError, match="MESSAGE_ILLEGAL"):
        raise second if isinstance(second, BaseException) else AssertionError(second)
