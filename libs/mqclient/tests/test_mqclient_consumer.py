"""Consuming: assignment, listening, send-back, offsets, shutdown (mechanisms C1, C8-C14, C20-C22, R1, L9)."""

from __future__ import annotations

import asyncio

import pytest

from mqclient import (
    ConnectionLostError,
    ConsumeFromWhere,
    ConsumeStatus,
    MessageExt,
)
from mqclient.consumer.rebalance import HAND_OVER_S
from mqclient.testing import FakeCluster, RecordingListener, consumer_of
from mqclient.transport import methods
from mqproto.properties import KEYS, TAGS, UNIQ_KEY
from osenv.sim_clock import settle

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


async def test_messages_reach_the_listener_and_offsets_the_broker() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    listener = RecordingListener()
    async with consumer_of(cluster, listener) as consumer:
        for number in range(8):
            broker.put("orders", number % 4, b"%d" % number, {TAGS: "created", KEYS: "a b", UNIQ_KEY: f"id-{number}"})
        await settle()
        assert sorted(listener.bodies) == [b"%d" % number for number in range(8)]
        assert all(len(batch) == 1 for batch in listener.batches)
        message = listener.batches[0][0]
        assert (message.topic, message.broker_name, message.tag) == ("orders", "broker-a", "created")
        assert message.keys == ("a", "b")
        assert message.message_id.startswith("id-")
        assert message.store_timestamp_ms == cluster.clock.wall_ms()
        assert [queue.queue_id for queue in consumer.queues if queue.topic == "orders"] == [0, 1, 2, 3]
        await cluster.clock.advance(10.1)
        assert [broker.offsets["closers", "orders", number] for number in range(4)] == [2, 2, 2, 2]
        commits = len(broker.commits)
        await cluster.clock.advance(20.0)
        assert len(broker.commits) == commits  # nothing has changed, so nothing is written


@pytest.mark.mechanism("C20")
async def test_offset_stays_at_the_smallest_unfinished_message() -> None:
    """Mechanism C21, through the whole consumer: 2101 is stuck, 2102 to 2200 finish."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(2201):
        broker.put("orders", 0, b"%d" % number)
    broker.offsets["closers", "orders", 0] = 2101
    release = asyncio.Event()
    done: list[bytes] = []

    async def listener(messages: list[MessageExt]) -> ConsumeStatus:
        if messages[0].queue_offset == 2101:
            await release.wait()
        done.extend(message.body for message in messages)
        return ConsumeStatus.CONSUME_SUCCESS

    async with consumer_of(cluster, listener):
        await cluster.clock.advance(15.0)
        assert len(done) == 99
        assert broker.offsets["closers", "orders", 0] == 2101
        release.set()
        await cluster.clock.advance(5.1)
        assert broker.offsets["closers", "orders", 0] == 2201


@pytest.mark.mechanism("C10")
@pytest.mark.parametrize(
    ("where", "expected"), [(FIRST, [b"old", b"new"]), (ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, [b"new"])]
)
async def test_group_without_offset_begins_where_it_was_told(where: ConsumeFromWhere, expected: list[bytes]) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"old")
    listener = RecordingListener()
    async with consumer_of(cluster, listener, consume_from_where=where):
        broker.put("orders", 0, b"new")
        await settle()
    assert listener.bodies == expected


async def test_last_offset_is_committed_before_anything_is_pulled() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"old")
    async with consumer_of(cluster, RecordingListener(), consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET):
        assert broker.offsets["closers", "orders", 0] == 1


async def test_retry_topic_is_read_from_its_beginning_even_by_last_offset() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("%RETRY%closers", 0, b"again", {"RETRY_TOPIC": "orders"})
    listener = RecordingListener()
    async with consumer_of(cluster, listener, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET):
        await settle()
    assert listener.bodies == [b"again"]
    assert listener.batches[0][0].topic == "orders"


@pytest.mark.mechanism("C9", "C12")
@pytest.mark.parametrize("answer", [ConsumeStatus.RECONSUME_LATER, ValueError("broken listener"), None])
async def test_message_that_was_not_consumed_goes_back_and_comes_again(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener(answer)
    async with consumer_of(cluster, listener, max_reconsume_times=3):
        broker.put("orders", 0, b"hard")
        await settle()
        listener.status = ConsumeStatus.CONSUME_SUCCESS
        assert [(back.group, back.log_offset, back.max_reconsume_times) for back in broker.send_backs] == [
            ("closers", 0, 3)
        ]
        await cluster.clock.advance(20.1)
    assert listener.bodies == [b"hard", b"hard"]
    again = listener.batches[1][0]
    assert (again.topic, again.reconsume_times) == ("orders", 1)
    assert broker.offsets["closers", "orders", 0] == 1
    assert ("broken listener" in caplog.text) == isinstance(answer, ValueError)


async def test_failed_send_back_keeps_the_message_for_a_local_retry() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.unary_errors[methods.CONSUMER_SEND_BACK.path] = [ConnectionLostError("gone")]
    listener = RecordingListener(ConsumeStatus.RECONSUME_LATER)
    async with consumer_of(cluster, listener):
        broker.put("orders", 0, b"hard")
        await cluster.clock.advance(4.9)
        assert listener.bodies == [b"hard"]
        listener.status = ConsumeStatus.CONSUME_SUCCESS
        await cluster.clock.advance(0.2)
        assert listener.bodies == [b"hard", b"hard"]
        assert listener.batches[1][0].reconsume_times == 1
        assert broker.send_backs == []
    assert broker.offsets["closers", "orders", 0] == 1


@pytest.mark.mechanism("C9")
async def test_batches_have_at_most_the_configured_size() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(10):
        broker.put("orders", 0, b"%d" % number)
    listener = RecordingListener()
    async with consumer_of(cluster, listener, consume_message_batch_max_size=4):
        await settle()
    assert [len(batch) for batch in listener.batches] == [4, 4, 2]


async def test_no_more_listeners_run_than_allowed() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a")
    running = most = 0
    release = asyncio.Event()

    async def listener(_: list[MessageExt]) -> ConsumeStatus:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return ConsumeStatus.CONSUME_SUCCESS

    async with consumer_of(cluster, listener, consume_concurrency=3):
        for number in range(12):
            broker.put("orders", number % 4, b"x")
        await settle()
        assert running == 3
        release.set()
        await settle()
    assert most == 3


@pytest.mark.mechanism("F1")
async def test_only_matching_tags_reach_the_listener_and_the_others_count_as_done() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    async with consumer_of(cluster, listener, tags="paid || closed"):
        for tag in ("created", "paid", "closed", "created"):
            broker.put("orders", 0, tag.encode(), {TAGS: tag})
        await settle()
    assert listener.bodies == [b"paid", b"closed"]
    assert broker.offsets["closers", "orders", 0] == 4


@pytest.mark.mechanism("C8")
async def test_flow_control_stops_pulling_until_messages_finish() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(3000):
        broker.put("orders", 0, b"%d" % number)
    release = asyncio.Event()
    seen = 0

    async def listener(_: list[MessageExt]) -> ConsumeStatus:
        nonlocal seen
        await release.wait()
        seen += 1
        return ConsumeStatus.CONSUME_SUCCESS

    async with consumer_of(cluster, listener, pull_batch_size=100):
        await cluster.clock.advance(1.0)
        pulled = max(broker.polled_offsets)
        assert pulled == 1000  # the last pull began there: 1,000 waiting is still allowed, 1,100 is not
        release.set()
        await cluster.clock.advance(5.0)
        assert seen == 3000


@pytest.mark.mechanism("C1", "C13")
async def test_second_member_takes_its_share_and_gives_it_back() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=8)
    listeners = [RecordingListener(), RecordingListener(), RecordingListener()]
    consumers = [consumer_of(cluster, listener, member=f"m{n}") for n, listener in enumerate(listeners)]

    def shares() -> list[list[int]]:
        return [[queue.queue_id for queue in c.queues if queue.topic == "orders"] for c in consumers]

    await consumers[0].start()
    assert shares()[0] == [0, 1, 2, 3, 4, 5, 6, 7]
    await consumers[1].start()
    await consumers[2].start()
    await cluster.clock.advance(3 * HAND_OVER_S)
    assert shares() == [[0, 1, 2], [3, 4, 5], [6, 7]]  # mechanism C14
    for number in range(8):
        broker.put("orders", number, b"%d" % number)
    await settle()
    assert [sorted(listener.bodies) for listener in listeners] == [
        [b"0", b"1", b"2"],
        [b"3", b"4", b"5"],
        [b"6", b"7"],
    ]
    await consumers[1].shutdown()
    await cluster.clock.advance(HAND_OVER_S)
    assert [len(share) for share in shares()] == [4, 0, 4]
    assert [broker.offsets["closers", "orders", number] for number in range(3, 6)] == [1, 1, 1]
    await consumers[0].shutdown()
    await consumers[2].shutdown()
    assert sum(len(listener.bodies) for listener in listeners) == 8  # nothing came twice


async def test_members_that_join_one_after_the_other_consume_nothing_twice() -> None:
    """What a member computes before its pause is out of date after it when another one has joined meanwhile."""
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=8)
    consumed: list[bytes] = []

    async def busy(messages: list[MessageExt]) -> ConsumeStatus:
        consumed.extend(message.body for message in messages)
        await cluster.clock.sleep(0.05)
        return ConsumeStatus.CONSUME_SUCCESS

    consumers = [consumer_of(cluster, busy, member=f"m{n}") for n in range(3)]
    async with consumers[0]:
        await consumers[1].start()
        await cluster.clock.advance(0.01)
        await consumers[2].start()
        await cluster.clock.advance(0.01)
        for number in range(8):
            broker.put("orders", number, b"%d" % number)
        await cluster.clock.advance(3 * HAND_OVER_S)
        assert [len(consumer.queues) for consumer in consumers] == [3, 3, 2]
        await asyncio.gather(consumers[1].shutdown(), consumers[2].shutdown())
    assert sorted(consumed) == [b"%d" % number for number in range(8)]


@pytest.mark.mechanism("C13")
async def test_member_that_dies_without_a_word_is_replaced() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    stays, dies = (
        consumer_of(cluster, RecordingListener(), member="m0"),
        consumer_of(cluster, RecordingListener(), member="m1"),
    )
    await stays.start()
    await dies.start()
    await settle()
    assert len(broker.members("closers")) == 2
    for stream in [stream for stream in broker.streams if stream.path == methods.SESSION.path][1:]:
        broker.stream_ended(stream)  # the broker has lost the second member's session
    await settle()
    assert len([queue for queue in stays.queues if queue.topic == "orders"]) == 2
    await dies.shutdown()
    await stays.shutdown()


async def test_poll_of_a_dropped_queue_is_cancelled() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    first, second = (
        consumer_of(cluster, RecordingListener(), member="m0"),
        consumer_of(cluster, RecordingListener(), member="m1"),
    )
    await first.start()
    await settle()
    assert broker.cancelled_polls == []
    await second.start()
    await settle()
    assert len(broker.cancelled_polls) == 1
    await first.shutdown()
    await second.shutdown()


@pytest.mark.mechanism("C10")
async def test_nothing_is_missed_of_a_topic_that_is_made_while_its_group_waits() -> None:
    """Whatever the group's beginning: the first message of a topic comes after the group began to want it."""
    cluster, (broker,) = FakeCluster.of("broker-a", topic=None)
    listener = RecordingListener()
    async with consumer_of(cluster, listener, consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET):
        await cluster.clock.advance(5.0)
        broker.create_topic("orders", 1)
        broker.put("orders", 0, b"the first")
        await cluster.clock.advance(30.0)
        assert listener.bodies == [b"the first"]


async def test_consuming_goes_on_after_every_stream_broke() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=2)
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        broker.put("orders", 0, b"before")
        await settle()
        broker.down = True
        broker.break_streams()
        await cluster.clock.advance(8.0)
        broker.down = False
        broker.put("orders", 1, b"after")
        await cluster.clock.advance(5.0)
        assert listener.bodies == [b"before", b"after"]
        assert len(broker.members("closers")) == 1


async def test_silent_broker_is_asked_again_after_the_guard() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        broker.silent = True
        broker.put("orders", 0, b"late")
        await cluster.clock.advance(29.0)
        assert broker.cancelled_polls == []
        await cluster.clock.advance(2.5)
        assert len(broker.cancelled_polls) == 1
        broker.silent = False
        broker.put("orders", 0, b"later")
        await settle()
        assert listener.bodies == [b"late", b"later"]


async def test_illegal_offset_goes_on_where_the_broker_says_and_is_committed() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    for number in range(10):
        broker.put("orders", 0, b"%d" % number)
    broker.min_offsets["orders", 0] = 7
    broker.offsets["closers", "orders", 0] = 2
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        await settle()
        assert listener.bodies == [b"7", b"8", b"9"]
        assert broker.commits[0].queues[0].offset == 7


async def test_rejected_pull_is_tried_again_after_a_second(caplog: pytest.LogCaptureFixture) -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        config = broker.topics.pop("orders")
        broker.break_streams()
        await cluster.clock.advance(5.0)
        assert "TOPIC_NOT_EXIST" in caplog.text
        broker.topics["orders"] = config
        broker.put("orders", 0, b"x")
        await cluster.clock.advance(1.1)
        assert listener.bodies == [b"x"]


async def test_queues_of_a_deleted_topic_are_given_up_until_it_is_there_again() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    listener = RecordingListener()
    async with consumer_of(cluster, listener) as consumer:
        config = broker.topics.pop("orders")
        broker.break_streams()
        await cluster.clock.advance(60.0)
        assert consumer.queues == []
        polls = len(broker.polled_offsets)
        await cluster.clock.advance(300.0)
        assert len(broker.polled_offsets) == polls
        broker.topics["orders"] = config
        broker.put("orders", 0, b"x")
        await cluster.clock.advance(60.0)
        assert listener.bodies == [b"x"]


async def test_offset_that_cannot_be_asked_for_delays_the_queue_only() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    broker.put("orders", 0, b"x")
    broker.unary_errors[methods.QUERY_CONSUMER_OFFSET.path] = [ConnectionLostError("gone")] * 2
    listener = RecordingListener()
    async with consumer_of(cluster, listener):
        await cluster.clock.advance(4.0)
        assert listener.bodies == [b"x"]


async def test_topic_that_is_created_later_is_found_soon() -> None:
    cluster = FakeCluster()
    broker = cluster.add_broker("broker-a")
    listener = RecordingListener()
    async with consumer_of(cluster, listener) as consumer:
        assert consumer.queues == []
        broker.put("orders", 0, b"x")
        await cluster.clock.advance(21.0)
        assert listener.bodies == [b"x"]


async def test_start_without_any_server_succeeds_and_joins_later() -> None:
    cluster, (broker,) = FakeCluster.of("broker-a", queue_count=1)
    (name_server,) = cluster.name_servers.values()
    name_server.down = True
    listener = RecordingListener()
    consumer = consumer_of(cluster, listener)
    await consumer.start()
    broker.put("orders", 0, b"x")
    name_server.down = False
    await cluster.clock.advance(25.0)
    assert listener.bodies == [b"x"]
    await consumer.shutdown()
