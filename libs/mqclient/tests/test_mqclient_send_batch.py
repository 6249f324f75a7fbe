"""Several messages stored together (mechanisms P15, P16)."""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BatchSendResult,
    IllegalArgumentError,
    Message,
    MessageBatchSplitter,
    MessageQueue,
    MessageRejectedError,
    Producer,
    ProducerConfig,
)
from mqclient.testing import FakeCluster, FrameFault
from mqproto.properties import WAIT, decode_properties
from mqproto.record import decode_record, iter_records
from osenv.sim_clock import settle

MIB = 1024 * 1024


def numbered(count: int, size: int = 10) -> list[Message]:
    return [Message("orders", b"%08d" % number + bytes(size), keys=f"o-{number}") for number in range(count)]


@pytest.mark.mechanism("P15")
async def test_a_batch_is_stored_whole_and_one_behind_the_other_and_says_where() -> None:
    """Its encoding is that of every batch on the wire: records end to end (docs/reference/contracts.md#the-wire)."""
    cluster, (broker,) = FakeCluster.of("broker-a")
    messages = numbered(1_000, 1_500)  # more than a frame takes otherwise
    async with Producer("shop", cluster.url) as producer:
        others = [asyncio.create_task(producer.send(Message("orders", b"other"))) for _ in range(100)]
        result = await producer.send_batch(messages)
        await asyncio.gather(*others)
    assert isinstance(result, BatchSendResult)
    stored = [decode_record(record) for record in broker.queues["orders", result.message_queue.queue_id]]
    own = stored[result.queue_offset : result.queue_offset + 1_000]
    assert [record.body for record in own] == [message.body for message in messages]
    assert [own[0].log_offset + sum(one.size for one in own[:n]) for n in range(1_000)] == [
        one.log_offset for one in own
    ]
    assert list(result.places) == [(record.queue_offset, record.log_offset) for record in own]
    assert [decode_properties(record.properties)["UNIQ_KEY"] for record in own] == list(result.message_ids)
    assert result.message_id == ",".join(result.message_ids)
    assert result.offset_message_id.split(",")[0] == "7F00000100002A9F" + f"{own[0].log_offset:016X}"
    assert (result.queue_offset, result.log_offset) == result.places[0]
    batches = [batch for frame in broker.frames for batch in frame.batches if messages[0].body in batch.records]
    assert [record.body for record in iter_records(batches[0].records)].count(messages[999].body) == 1


async def test_a_rejected_batch_is_tried_again_whole_elsewhere() -> None:
    cluster, brokers = FakeCluster.of("broker-a", "broker-b")
    for broker in brokers:
        broker.next_codes = [common_pb.SYSTEM_BUSY]
    async with Producer("shop", cluster.url) as producer:
        send = asyncio.create_task(producer.send_batch(numbered(5)))
        await cluster.clock.advance(2.0)
        result = await send
    assert sorted(len(broker.bodies) for broker in brokers) == [0, 5]
    assert [queue_offset for queue_offset, _ in result.places] == [0, 1, 2, 3, 4]


async def test_a_batch_whose_answer_was_lost_is_stored_once() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.frame_faults = [FrameFault.BREAK_AFTER_STORE]
    async with Producer("shop", cluster.url) as producer:
        result = await producer.send_batch(numbered(5))
    assert len(broker.bodies) == 5
    assert [queue_offset for queue_offset, _ in result.places] == [0, 1, 2, 3, 4]


async def test_a_batch_that_was_torn_says_where_each_message_is() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        send = asyncio.create_task(producer.send_batch(numbered(4)))
        await settle()
        broker.produce(broker.frames[-1])
        broker.restart(lost_records=2)
        broker.put("orders", 0, b"of another producer")
        broker.silent = False
        result = await send
    assert [queue_offset for queue_offset, _ in result.places] == [0, 1, 3, 4]
    for queue_offset, log_offset in result.places:
        assert broker.record_at(log_offset) == broker.queues["orders", 0][queue_offset]


async def test_a_batch_may_go_to_a_chosen_queue() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    queue = MessageQueue("orders", "broker-a", 2)
    async with Producer("shop", cluster.url) as producer:
        assert (await producer.send_batch(numbered(3), queue=queue)).message_queue == queue
        with pytest.raises(MessageRejectedError, match="the queue is bills"):
            await producer.send_batch(numbered(3), queue=MessageQueue("bills", "broker-a", 2))
    assert len(broker.queues["orders", 2]) == 3


async def test_a_batch_is_not_compressed_and_says_that_it_need_not_wait() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    messages = [Message("orders", bytes(100_000), wait_store_msg_ok=False) for _ in range(2)]
    async with Producer("shop", cluster.url) as producer:
        result = await producer.send_batch(messages)
    for data in broker.queues["orders", result.message_queue.queue_id]:
        record = decode_record(data)
        assert (record.sys_flag, len(record.body)) == (0, 100_000)
        assert decode_properties(record.properties)[WAIT] == "false"


@pytest.mark.mechanism("P15")
async def test_the_splitter_makes_batches_that_fit_and_keeps_the_order() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    messages = numbered(300, 10_000)
    batches = list(MessageBatchSplitter(messages))
    assert [message for batch in batches for message in batch] == messages
    assert len(batches) == 3
    async with Producer("shop", cluster.url, producer_config=ProducerConfig(max_message_size=MIB)) as producer:
        for batch in batches:
            result = await producer.send_batch(batch)
            size = sum(len(broker.record_at(log_offset)) for _, log_offset in result.places)
            assert size <= MIB
    assert len(broker.bodies) == 300


def test_the_splitter_fills_each_batch() -> None:
    (first, *_) = MessageBatchSplitter(numbered(300, 10_000))
    assert len(first) * 10_200 > MIB - 10_200
    assert [len(batch) for batch in MessageBatchSplitter(numbered(5), max_bytes=250)] == [1] * 5
    assert list(MessageBatchSplitter([])) == []


def test_the_splitter_rejects_what_no_batch_can_hold() -> None:
    splitter = MessageBatchSplitter([Message("orders", b"x"), Message("orders", bytes(MIB))])
    batches = iter(splitter)
    with pytest.raises(MessageRejectedError, match=r"message 1 takes 1,048,\d{3} bytes; .* so send it alone"):
        list(batches)
    with pytest.raises(MessageRejectedError, match="the body is empty"):
        list(MessageBatchSplitter([Message("orders", b"")]))
    for size in (0, 4 * MIB + 1):
        with pytest.raises(IllegalArgumentError, match="max_bytes"):
            MessageBatchSplitter([], max_bytes=size)
