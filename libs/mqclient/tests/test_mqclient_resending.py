"""What is sent again after a break, what goes elsewhere, and what its sender hears.

See docs/reference/contracts.md#the-wire.
"""

from __future__ import annotations

import asyncio

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    BrokerUnreachableError,
    ConnectionLostError,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    RequestTimeoutError,
    SendResult,
)
from mqclient.testing import FakeBroker, FakeCluster, FrameFault
from osenv.sim_clock import settle

UNCOMPRESSED = ProducerConfig(compress_msg_body_over_howmuch=None)
FIRST_QUEUE = MessageQueue("orders", "broker-a", 0)


def numbers(broker: FakeBroker) -> list[tuple[int, list[tuple[int, int]]]]:
    """Of each frame that came: its epoch, and the first number and the count of its batches."""
    return [
        (frame.producer_epoch, [(batch.base_sequence, batch.count) for batch in frame.batches])
        for frame in broker.frames
    ]


def start(producer: Producer, *bodies: bytes, timeout: float = 3.0) -> list[asyncio.Task[SendResult]]:
    return [asyncio.create_task(producer.send(Message("orders", body), timeout=timeout)) for body in bodies]


@pytest.mark.parametrize("fault", [FrameFault.BREAK_AFTER_STORE, FrameFault.BREAK_BEFORE_STORE])
async def test_what_has_no_answer_is_sent_again_byte_for_byte_and_stored_once(fault: FrameFault) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"first"))
        broker.frame_faults = [fault]
        results = await asyncio.gather(*start(producer, b"a", b"b", b"c"))
    assert broker.bodies == [b"first", b"a", b"b", b"c"]
    assert [result.queue_offset for result in results] == [1, 2, 3]
    assert numbers(broker) == [(1, [(1, 1)]), (1, [(2, 3)]), (2, [(2, 3)])]
    assert broker.frames[1].batches[0].records == broker.frames[2].batches[0].records
    assert cluster.clock.monotonic() == 0.0


async def test_all_unanswered_frames_go_again_in_their_order_before_anything_new() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.silent = True
    async with Producer("shop", cluster.url, producer_config=UNCOMPRESSED) as producer:
        sends = start(producer, *(bytes([n]) * 600_000 for n in range(6)))
        await settle()
        assert numbers(broker) == [(1, [(n, 1)]) for n in (1, 2, 3, 4)]
        broker.silent = False
        broker.break_streams()
        await asyncio.gather(*sends)
    assert numbers(broker)[4:] == [(2, [(n, 1)]) for n in (1, 2, 3, 4, 5, 6)]
    assert [body[0] for body in broker.bodies] == list(range(6))


async def test_a_gap_in_the_numbers_begins_a_new_batch() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"first"))
        sends = start(producer, b"a", b"b", b"c", b"d")
        await asyncio.sleep(0)
        sends[1].cancel()
        await asyncio.wait(sends)
    assert broker.bodies == [b"first", b"a", b"c", b"d"]
    assert numbers(broker)[1:] == [(1, [(2, 1), (4, 2)])]


async def test_a_batch_says_which_number_is_the_first_without_an_answer() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.silent = True
    async with Producer("shop", cluster.url, producer_config=UNCOMPRESSED) as producer:
        sends = start(producer, *(bytes(900_000) for _ in range(3)))
        await settle()
        broker.answer_frame(broker.frames[0])
        await settle()
        sends += start(producer, b"last")
        await settle()
        for frame in broker.frames[1:]:
            broker.answer_frame(frame)
        await asyncio.gather(*sends)
    assert [frame.batches[0].first_unanswered_sequence for frame in broker.frames] == [1, 1, 1, 2]


async def test_a_batch_without_waiting_callers_is_not_sent_again() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.silent = True
    async with Producer("shop", cluster.url, producer_config=UNCOMPRESSED) as producer:
        gone, stays = start(producer, bytes(900_000), bytes(900_001))
        await settle()
        gone.cancel()
        await settle()
        broker.silent = False
        broker.break_streams()
        await stays
    assert numbers(broker)[2:] == [(2, [(2, 1)])]
    assert [len(body) for body in broker.bodies] == [900_001]


async def test_a_batch_with_one_caller_left_is_sent_again_whole() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"first"))
        broker.silent = True
        late = start(producer, b"late", timeout=1.0)
        (patient,) = start(producer, b"patient")
        await cluster.clock.advance(1.1)
        assert isinstance(late[0].exception(), RequestTimeoutError)
        broker.silent = False
        broker.break_streams()
        await patient
    assert broker.bodies == [b"first", b"late", b"patient"]


async def test_when_nothing_listens_any_more_a_message_goes_to_another_broker_at_once() -> None:
    cluster, (first, _second) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        await asyncio.gather(*start(producer, *([b"before"] * 8)))
        first.silent = True
        sends = start(producer, *(b"%d" % n for n in range(16)))
        await settle()
        first.down = True
        first.break_streams()
        results = await asyncio.gather(*sends)
    assert {result.message_queue.broker_name for result in results} == {"broker-b"}
    assert cluster.clock.monotonic() == 0.0
    assert first.bodies == [b"before"] * 4


async def test_a_chosen_queue_is_not_exchanged_for_one_of_another_broker() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        first.frame_faults = [FrameFault.BREAK_AFTER_STORE]
        send = asyncio.create_task(producer.send(Message("orders", b"x"), queue=FIRST_QUEUE))
        await settle()
        assert len(first.frames) == 2
        first.frame_faults = [FrameFault.BREAK_AFTER_STORE]
        first.silent = True
        again = asyncio.create_task(producer.send(Message("orders", b"y"), queue=FIRST_QUEUE))
        await settle()
        first.down = True
        first.break_streams()
        await cluster.clock.advance(1.0)
        assert not again.done()
        first.down = first.silent = False
        first.frame_faults = []
        await cluster.clock.advance(1.0)
        assert (await send).queue_offset == 0
        assert (await again).queue_offset == 1
    assert (first.bodies, second.bodies) == ([b"x", b"y"], [])


async def test_the_only_broker_is_tried_until_the_deadline_and_recognises_the_message_when_it_comes_back() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        broker.silent = True
        (send,) = start(producer, b"x")
        await settle()
        broker.produce(broker.frames[-1])  # stored, without an answer
        broker.down, broker.silent = True, False
        broker.break_streams()
        await cluster.clock.advance(2.5)
        assert not send.done()
        broker.down = False
        await cluster.clock.advance(0.4)
        assert (await send).queue_offset == 1
    assert broker.bodies == [b"before", b"x"]
    assert {frame.producer_epoch for frame in broker.frames} == {1, 2}  # rejected streams reached no broker


async def test_what_its_deadline_has_ended_is_not_stored_later() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"before"))
        broker.silent = True
        left = start(producer, b"left")
        await settle()
        broker.down, broker.silent = True, False
        broker.break_streams()
        await settle()
        stayed = start(producer, b"stayed")
        await cluster.clock.advance(3.1)
        assert isinstance(left[0].exception(), RequestTimeoutError)
        error = stayed[0].exception()
        assert isinstance(error, BrokerUnreachableError)
        assert "could not leave in time; the last connection failed: 127.0.0.1:10911: nothing listens" in str(error)
        broker.down = False
        await producer.send(Message("orders", b"after"))
    assert broker.bodies == [b"before", b"after"]


async def test_what_had_not_left_goes_elsewhere_while_the_rest_is_sent_again() -> None:
    cluster, (first, _second) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    first.silent = True
    async with Producer("shop", cluster.url, producer_config=UNCOMPRESSED) as producer:
        sends = start(producer, *(bytes(900_000) for _ in range(10)))
        await settle()
        assert len(first.frames) == 4
        first.silent = False
        first.break_streams()
        results = await asyncio.gather(*sends)
    names = [result.message_queue.broker_name for result in results]
    assert (names.count("broker-a"), names.count("broker-b")) == (4, 6)
    assert len(first.bodies) == 4


async def test_a_broker_that_takes_connections_and_ends_them_is_left_in_the_end() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    async with Producer("shop", cluster.url) as producer:
        first.frame_faults = [FrameFault.BREAK_BEFORE_STORE] * 100
        sends = start(producer, b"a", b"b")
        await cluster.clock.advance(1.0)
        results = await asyncio.gather(*sends)
    assert {result.message_queue.broker_name for result in results} == {"broker-b"}
    assert sorted(second.bodies) == [b"a", b"b"]


async def test_a_rejected_message_gets_a_new_number_for_its_next_try() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.next_codes = [common_pb.SYSTEM_BUSY]
    async with Producer("shop", cluster.url) as producer:
        (send,) = start(producer, b"x")
        await cluster.clock.advance(0.3)
        assert (await send).queue_offset == 0
    assert numbers(broker) == [(1, [(1, 1)]), (1, [(2, 1)])]


async def test_a_rejected_repeat_may_have_been_stored_before() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.frame_faults = [FrameFault.BREAK_AFTER_STORE]
    broker.next_codes = [0, common_pb.SYSTEM_BUSY]
    async with Producer("shop", cluster.url) as producer:
        with pytest.raises(ConnectionLostError, match=r"broke before the answer, then: .* SYSTEM_BUSY"):
            await producer.send(Message("orders", b"x"))
    assert broker.bodies == [b"x"]


async def test_a_broker_that_may_have_stored_a_message_does_not_get_it_under_a_new_number() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        while (await producer.send(Message("orders", b"before"))).message_queue.broker_name != "broker-b":
            pass
        stored_before = len(first.frames)
        first.silent = True
        (send,) = start(producer, b"x")  # the next one in turn is broker-a
        await settle()
        assert len(first.frames) == stored_before + 1
        second.next_codes = [common_pb.SYSTEM_BUSY]
        first.down = True
        first.break_streams()
        await settle()
        first.down = first.silent = False
        await cluster.clock.advance(2.0)
        assert (await send).message_queue.broker_name == "broker-b"
    assert second.bodies[-1] == b"x"
    assert len(first.frames) == stored_before + 1


async def test_with_no_other_broker_left_an_unknown_outcome_is_what_the_caller_hears() -> None:
    cluster, (first, second) = FakeCluster.of("broker-a", "broker-b")
    first.silent = second.silent = True
    async with Producer("shop", cluster.url) as producer:
        (send,) = start(producer, b"x")
        await settle()
        for broker in (first, second):
            broker.down = True
            broker.break_streams()
        await cluster.clock.advance(3.1)
        assert isinstance(send.exception(), ConnectionLostError)
        assert len(first.frames) + len(second.frames) == 1


async def test_a_message_says_where_it_stands_when_its_batch_was_torn() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    async with Producer("shop", cluster.url) as producer:
        await producer.send(Message("orders", b"first"))
        broker.silent = True
        sends = start(producer, b"a", b"b", b"c")
        await settle()
        broker.produce(broker.frames[-1])
        broker.restart(lost_records=2)
        broker.put("orders", 0, b"of another producer")
        broker.silent = False
        results = await asyncio.gather(*sends)
    assert broker.bodies == [b"first", b"a", b"of another producer", b"b", b"c"]
    assert [result.queue_offset for result in results] == [1, 3, 4]
    for result, record in zip(results, (broker.queues["orders", 0][n] for n in (1, 3, 4)), strict=True):
        assert broker.record_at(result.log_offset) == record


@pytest.mark.parametrize("answer", ["too few results", "too short a stretch"])
async def test_an_answer_that_leaves_something_out_is_an_unknown_outcome(answer: str) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = start(producer, b"a", b"b")
        await settle()
        response = broker_pb.ProduceResponse(request_id=broker.frames[0].request_id)
        if answer == "too short a stretch":
            response.results.add().stretches.add(count=1)
        broker.produce_stream.answer(response)
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(outcomes[1], ConnectionLostError)
    assert isinstance(outcomes[0], ConnectionLostError if answer == "too few results" else SendResult)


async def test_two_clients_have_two_producer_ids() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for _ in range(2):
        async with Producer("shop", cluster.url) as producer:
            await producer.send(Message("orders", b"x"))
    ids = [frame.producer_id for frame in broker.frames]
    assert len(set(ids)) == 2
    assert all(0 < one < 1 << 63 for one in ids)
    assert broker.bodies == [b"x", b"x"]


async def test_an_answer_to_a_frame_that_was_not_sent_is_logged_and_counts_for_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.silent = True
    async with Producer("shop", cluster.url) as producer:
        sends = start(producer, b"a")
        await settle()
        broker.produce_stream.answer(broker_pb.ProduceResponse(request_id=99))
        await settle()
        assert "answered frame 99, which is not in flight" in caplog.text
        broker.answer_frame(broker.frames[0])
        await asyncio.gather(*sends)
