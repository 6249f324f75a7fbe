"""Sending: batching, retries, budget, errors, shutdown.

Mechanisms P1, P4, P5, P7, P9, P10, P13, P17, P18, N6, N8, L4.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerRejectedError,
    BrokerUnavailableError,
    Message,
    NoRouteError,
    NotSentError,
    Producer,
    ProducerConfig,
    RejectedError,
    RequestTimeoutError,
    RetryableError,
    SendResult,
    SendStatus,
)
from mqclient.testing import FakeCluster
from mqproto.record import decode_record
from osenv.sim_clock import settle

UNCOMPRESSED = ProducerConfig(compress_msg_body_over_howmuch=None)


async def outcome(cluster: FakeCluster, task: asyncio.Task[SendResult], seconds: float) -> SendResult | BaseException:
    """Let time pass and return what the send came to, which it must have by then."""
    await cluster.clock.advance(seconds)
    assert task.done()
    return task.exception() or task.result()


@pytest.mark.mechanism("M10", "P1")
async def test_send_stores_the_message_and_says_where() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        result = await producer.send(Message("orders", b"body", tag="created", keys="o-1", flag=7))
    assert result.send_status is SendStatus.SEND_OK
    assert (result.queue_offset, result.log_offset) == (0, 0)
    assert result.message_queue.broker_name == "broker-a"
    assert result.offset_message_id == "7F00000100002A9F" + "0" * 16
    (stored,) = broker.queues["orders", result.message_queue.queue_id]
    record = decode_record(stored)
    assert (record.body, record.topic, record.flag, record.born_host) == (b"body", "orders", 7, ("10.0.0.1", 0))
    assert f"UNIQ_KEY\x01{result.message_id}\x02" in record.properties.decode()


async def test_concurrent_sends_share_frames_and_batches() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"first"))
        results = await asyncio.gather(*(producer.send(Message("orders", b"%d" % n)) for n in range(64)))
    assert [[batch.count for batch in frame.batches] for frame in broker.frames[1:]] == [[8, 8, 8, 8]] * 2
    assert len({(result.message_queue, result.queue_offset) for result in results}) == 64
    for result in results:
        record = decode_record(broker.queues["orders", result.message_queue.queue_id][result.queue_offset])
        assert (record.queue_offset, record.log_offset) == (result.queue_offset, result.log_offset)
        assert result.message_id in record.properties.decode()


@pytest.mark.parametrize(
    ("sends", "frames"), [(1, [1]), (20, [20]), (32, [32]), (33, [32, 1]), (256, [128] * 2), (1000, [500] * 2)]
)
async def test_what_waits_is_shared_by_two_frames(sends: int, frames: list[int]) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"first"))
        broker.silent = True
        sending = [asyncio.create_task(producer.send(Message("orders", b"x"))) for _ in range(sends)]
        await settle()
        assert [sum(batch.count for batch in frame.batches) for frame in broker.frames[1:]] == frames
        for frame in broker.frames[1:]:
            broker.answer_frame(frame)
        await asyncio.gather(*sending)


async def test_frames_stay_under_the_target_size_unless_one_message_is_larger() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url, producer_config=UNCOMPRESSED) as producer:
        await asyncio.gather(*(producer.send(Message("orders", bytes(300_000))) for _ in range(6)))
        await producer.send(Message("orders", bytes(4 * 1024 * 1024)))
    assert [sum(batch.count for batch in frame.batches) for frame in broker.frames] == [3, 3, 1]


async def test_at_most_four_frames_are_unanswered() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url, producer_config=UNCOMPRESSED) as producer:
        sends = [asyncio.create_task(producer.send(Message("orders", bytes(900_000)))) for _ in range(6)]
        await settle()
        assert len(broker.frames) == 4
        for answered in range(6):
            broker.answer_frame(broker.frames[answered])
            await settle()
        assert len(await asyncio.gather(*sends)) == 6


@pytest.mark.mechanism("P9")
async def test_round_robin_uses_every_queue() -> None:
    cluster, _ = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        results = [await producer.send(Message("orders", b"x")) for _ in range(16)]
    assert set(Counter(result.message_queue for result in results).values()) == {2}
    assert len({result.message_queue for result in results}) == 8


@pytest.mark.mechanism("M10")
@pytest.mark.parametrize("status", [SendStatus.FLUSH_DISK_TIMEOUT, SendStatus.FLUSH_SLAVE_TIMEOUT])
async def test_stored_but_less_safe_is_a_result(status: SendStatus) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.next_codes = [common_pb.ResponseCode.Value(status.value)]
    async with Producer("shop", cluster.url) as producer:
        assert (await producer.send(Message("orders", b"x"))).send_status is status


@pytest.mark.mechanism("P10")
@pytest.mark.parametrize(
    "code", ["SYSTEM_ERROR", "SYSTEM_BUSY", "SERVICE_NOT_AVAILABLE", "NO_PERMISSION", "TOPIC_NOT_EXIST", "GO_AWAY"]
)
async def test_retryable_code_goes_to_another_broker(code: str) -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        for _ in range(8):
            first.next_codes = [common_pb.ResponseCode.Value(code)]
            second.next_codes = []
            result = await producer.send(Message("orders", b"x"))
            if not first.next_codes:  # the first try was rejected, so the result is the second try's
                assert result.message_queue.broker_name == "broker-b"
    assert first.frames


@pytest.mark.mechanism("P5")
async def test_three_tries_and_then_the_broker_s_own_words() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.next_codes = [common_pb.SYSTEM_BUSY] * 3
    async with Producer("shop", cluster.url) as producer:
        send = asyncio.create_task(producer.send(Message("orders", b"x")))
        error = await outcome(cluster, send, 2.0)
    assert isinstance(error, BrokerUnavailableError)
    assert isinstance(error, RetryableError)
    assert "SYSTEM_BUSY: orders is rejected" in str(error)
    assert len(broker.frames) == 3


async def test_no_permission_everywhere_is_for_good() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.next_codes = [common_pb.NO_PERMISSION] * 3
    async with Producer("shop", cluster.url) as producer:
        error = await outcome(cluster, asyncio.create_task(producer.send(Message("orders", b"x"))), 2.0)
    assert isinstance(error, BrokerRejectedError)
    assert isinstance(error, RejectedError)


async def test_illegal_message_is_not_tried_again() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    first.next_codes = second.next_codes = [common_pb.MESSAGE_ILLEGAL]
    async with Producer("shop", cluster.url) as producer:
        with pytest.raises(BrokerRejectedError, match="MESSAGE_ILLEGAL"):
            await producer.send(Message("orders", b"x"))
    assert len(first.frames) + len(second.frames) == 1


@pytest.mark.mechanism("P10")
async def test_dead_broker_is_avoided() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"x"))
        first.down = True
        first.break_streams()
        results = [await producer.send(Message("orders", b"%d" % n)) for n in range(8)]
    assert {result.message_queue.broker_name for result in results} == {"broker-b"}
    assert len(second.bodies) >= 8


async def test_only_broker_is_given_time_to_come_back() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        broker.down = True
        broker.break_streams()
        send = asyncio.create_task(producer.send(Message("orders", b"after")))
        await cluster.clock.advance(0.3)
        assert not send.done()
        broker.down = False
        assert isinstance(await outcome(cluster, send, 1.5), SendResult)
    assert sorted(broker.bodies) == [b"after", b"before"]


@pytest.mark.mechanism("P4")
async def test_budget_covers_all_tries() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        send = asyncio.create_task(producer.send(Message("orders", b"x"), timeout=3.0))
        await cluster.clock.advance(2.99)
        assert not send.done()
        error = await outcome(cluster, send, 0.02)
        assert isinstance(error, RequestTimeoutError)
        assert len(broker.frames) == 1


async def test_message_that_could_not_leave_in_time_was_not_sent() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.silent = True
    async with Producer("shop", cluster.url, producer_config=UNCOMPRESSED) as producer:
        sends = [asyncio.create_task(producer.send(Message("orders", bytes(900_000)))) for _ in range(5)]
        await cluster.clock.advance(3.1)
        kinds = [type(send.exception()) for send in sends]
    assert kinds == [RequestTimeoutError] * 4 + [NotSentError]


async def test_cancelled_send_is_left_out_of_its_frame() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"first"))
        kept = asyncio.create_task(producer.send(Message("orders", b"kept")))
        cancelled = asyncio.create_task(producer.send(Message("orders", b"cancelled")))
        await asyncio.sleep(0)
        cancelled.cancel()
        await kept
    assert sorted(broker.bodies) == [b"first", b"kept"]


@pytest.mark.mechanism("P21")
async def test_only_masters_are_written() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    first.addresses = {0: first.address, 1: second.address}
    second.addresses = {1: first.address, 2: second.address}  # replicas of a master that is gone
    async with Producer("shop", cluster.url) as producer:
        results = [await producer.send(Message("orders", b"%d" % n)) for n in range(8)]
    assert {(result.message_queue.broker_name, result.broker_address) for result in results} == {
        ("broker-a", first.address)
    }
    assert (len(first.bodies), second.frames) == (8, [])


@pytest.mark.mechanism("P21")
async def test_a_topic_whose_masters_are_all_gone_cannot_be_written() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    broker.addresses = {1: broker.address}
    async with Producer("shop", cluster.url) as producer:
        sending = asyncio.create_task(producer.send(Message("orders", b"x")))
        await cluster.clock.advance(2.9)
        assert not sending.done()  # one of the replicas may be about to become the master
        await cluster.clock.advance(0.1)
        with pytest.raises(NoRouteError, match="no master available"):
            await sending
    assert broker.frames == []
