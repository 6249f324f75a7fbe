"""Queues assigned to a pull consumer: turns, positions, seeking, pausing, committing (mechanisms C5, C23)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mqclient import (
    Admin,
    BrokerUnreachableError,
    ClientConfig,
    IllegalStateError,
    MessageExt,
    MessageQueue,
    PullConsumer,
)
from mqclient.testing import FakeBroker, FakeCluster
from mqclient.transport import methods
from osenv.sim_clock import settle

QUEUES = [MessageQueue("orders", "a", number) for number in range(3)]
FIRST, SECOND, THIRD = QUEUES
START_MS = 1_700_000_000_000


@pytest_asyncio.fixture
async def cluster() -> FakeCluster:
    return FakeCluster.of("a", queue_count=3)[0]


@pytest_asyncio.fixture
async def broker(cluster: FakeCluster) -> FakeBroker:
    return next(iter(cluster.brokers.values()))


@pytest_asyncio.fixture
async def consumer(cluster: FakeCluster) -> AsyncIterator[PullConsumer]:
    async with PullConsumer("readers", cluster.url) as running:
        yield running


def put(broker: FakeBroker, queue: MessageQueue, *names: str) -> None:
    for name in names:
        broker.put(queue.topic, queue.queue_id, name.encode(), {"TAGS": name[0]})


async def names(polling: PullConsumer | asyncio.Task[list[MessageExt]]) -> list[str]:
    """The bodies of the next poll that has any, or of the one that is under way."""
    messages = await (polling.poll(60) if isinstance(polling, PullConsumer) else polling)
    return [message.body.decode() for message in messages]


def from_begin(consumer: PullConsumer, *queues: MessageQueue, max_messages: int = 2, expression: str = "*") -> None:
    consumer.assign(queues, max_messages=max_messages, expression=expression)
    for queue in queues:
        consumer.seek(queue, 0)


class TestPolling:
    async def test_queues_take_turns(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, FIRST, "a0", "a1", "a2", "a3", "a4")
        put(broker, SECOND, "b0", "b1", "b2")
        put(broker, THIRD, "c0")
        from_begin(consumer, *QUEUES)
        assert await consumer.poll(0) == []  # asks, and does not wait
        got = []
        for _ in range(6):
            await settle()  # every queue has something now
            got.append(await names(consumer))
        assert got == [["a0", "a1"], ["b0", "b1"], ["c0"], ["a2", "a3"], ["b2"], ["a4"]]

    async def test_it_waits_for_the_first_message_of_any_queue(
        self, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        from_begin(consumer, *QUEUES)
        waiting = asyncio.create_task(consumer.poll(60))
        await settle()
        assert not waiting.done()
        put(broker, SECOND, "b0")
        assert await names(waiting) == ["b0"]

    async def test_it_returns_empty_when_the_time_is_over_and_loses_nothing(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        from_begin(consumer, *QUEUES)
        waiting = asyncio.create_task(consumer.poll(5))
        await cluster.clock.advance(4.9)
        assert not waiting.done()
        await cluster.clock.advance(0.1)
        assert await waiting == []
        put(broker, THIRD, "c0")
        assert await names(consumer) == ["c0"]

    async def test_a_poll_that_is_cancelled_loses_nothing(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        from_begin(consumer, FIRST)
        waiting = asyncio.create_task(consumer.poll(60))
        await settle()
        waiting.cancel()
        put(broker, FIRST, "a0")
        await settle()
        assert await names(consumer) == ["a0"]

    async def test_what_is_not_wanted_is_passed_over(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, FIRST, "a0", "a1", "b2", "a3", "b4")
        from_begin(consumer, FIRST, expression="b")
        assert [await names(consumer), await names(consumer)] == [["b2"], ["b4"]]
        assert consumer.position(FIRST) == 5

    async def test_offsets_outside_are_left_for_the_nearest_ones(
        self, broker: FakeBroker, consumer: PullConsumer, caplog: pytest.LogCaptureFixture
    ) -> None:
        put(broker, FIRST, "a0", "a1", "a2")
        broker.min_offsets["orders", 0] = 2
        from_begin(consumer, FIRST)
        with caplog.at_level(logging.WARNING, "mqclient.pull_consumer"):
            assert await names(consumer) == ["a2"]
        assert "orders@a:0 has no offset 0 any more; it goes on at 2" in caplog.text

    async def test_a_queue_that_fails_is_told_once_a_turn_and_delays_no_other(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        down = cluster.add_broker("b")
        down.create_topic("orders", 1)
        broken = MessageQueue("orders", "b", 0)
        put(broker, FIRST, "a0", "a1", "a2", "a3")
        from_begin(consumer, broken, FIRST)
        await consumer.fetch_subscribe_message_queues("orders")
        down.down = True
        assert await consumer.poll(0) == []
        for wanted in (["a0", "a1"], ["a2", "a3"]):
            await settle()
            with pytest.raises(BrokerUnreachableError):
                await consumer.poll(60)
            assert await names(consumer) == wanted
        down.down = False
        put(down, broken, "z0")
        assert await names(consumer) == ["z0"]

    async def test_without_an_assignment_there_is_nothing_to_poll(self, consumer: PullConsumer) -> None:
        with pytest.raises(IllegalStateError, match="no queue is assigned"):
            await consumer.poll(60)

    async def test_a_shutdown_ends_a_poll_that_waits(self, cluster: FakeCluster) -> None:
        consumer = PullConsumer("readers", cluster.url)
        await consumer.start()
        from_begin(consumer, FIRST)
        waiting = asyncio.create_task(consumer.poll(60))
        await settle()
        await consumer.shutdown()
        with pytest.raises(IllegalStateError, match="has been shut down"):
            await waiting

    async def test_a_shutdown_takes_its_pulls_back_also_when_others_use_the_connection(
        self, cluster: FakeCluster, broker: FakeBroker
    ) -> None:
        async with Admin(cluster.url):
            async with PullConsumer("readers", cluster.url) as consumer:
                from_begin(consumer, *QUEUES)
                assert await consumer.poll(0) == []
                await settle()
            await settle()
            assert len(broker.cancelled_polls) == len(QUEUES)


class TestAssignment:
    async def test_queues_that_stay_go_on_and_others_come_and_go(
        self, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, FIRST, "a0", "a1", "a2")
        put(broker, SECOND, "b0")
        from_begin(consumer, FIRST)
        assert await names(consumer) == ["a0", "a1"]
        consumer.assign([SECOND, FIRST], max_messages=2)
        consumer.seek(SECOND, 0)
        assert [await names(consumer), await names(consumer)] == [["b0"], ["a2"]]
        consumer.assign([SECOND])
        with pytest.raises(IllegalStateError, match="orders@a:0 is not assigned"):
            consumer.position(FIRST)

    async def test_a_group_without_offsets_begins_at_the_end_and_it_stays_that_end(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, FIRST, "a0", "a1")
        consumer.assign([FIRST])
        assert await consumer.poll(0) == []
        await settle()
        assert (consumer.position(FIRST), broker.offsets["readers", "orders", 0]) == (2, 2)
        put(broker, FIRST, "a2")
        async with PullConsumer("readers", cluster.url, client_config=ClientConfig(instance_name="next")) as following:
            following.assign([FIRST])
            assert await names(following) == ["a2"]

    async def test_a_group_goes_on_where_it_has_committed(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, FIRST, "a0", "a1", "a2")
        put(broker, SECOND, "b0")
        from_begin(consumer, FIRST, SECOND)
        assert [await names(consumer), await names(consumer)] == [["a0", "a1"], ["b0"]]
        await consumer.commit_all()
        async with PullConsumer("readers", cluster.url, client_config=ClientConfig(instance_name="next")) as following:
            following.assign([FIRST, SECOND])
            assert await names(following) == ["a2"]

    async def test_a_paused_queue_waits_and_goes_on_where_it_was(
        self, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, FIRST, "a0", "a1", "a2")
        put(broker, SECOND, "b0", "b1")
        from_begin(consumer, FIRST, SECOND, max_messages=1)
        assert await names(consumer) == ["a0"]
        consumer.pause(FIRST)
        assert [await names(consumer), await names(consumer)] == [["b0"], ["b1"]]
        consumer.pause(SECOND)
        waiting = asyncio.create_task(consumer.poll(60))
        await settle()
        assert not waiting.done()
        consumer.resume(FIRST)
        assert await names(waiting) == ["a1"]


class TestSeeking:
    async def test_what_was_pulled_before_a_seek_is_not_returned(
        self, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, FIRST, "a0", "a1", "a2", "a3")
        from_begin(consumer, FIRST, max_messages=1)
        assert await names(consumer) == ["a0"]
        await settle()  # a1 has come meanwhile
        consumer.seek(FIRST, 3)
        assert await names(consumer) == ["a3"]

    async def test_a_seek_reaches_a_poll_that_waits(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, FIRST, "a0")
        consumer.assign([FIRST])
        await consumer.seek_to_end(FIRST)
        waiting = asyncio.create_task(consumer.poll(60))
        await settle()
        await consumer.seek_to_begin(FIRST)
        assert await names(waiting) == ["a0"]

    async def test_to_a_time_and_to_both_ends(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        for number in range(3):
            put(broker, FIRST, f"a{number}")
            await cluster.clock.advance(1)
        broker.min_offsets["orders", 0] = 1
        consumer.assign([FIRST])
        for seek, wanted in (
            (consumer.seek_to_time(FIRST, START_MS + 1_500), 2),
            (consumer.seek_to_begin(FIRST), 1),
            (consumer.seek_to_end(FIRST), 3),
        ):
            await seek
            assert consumer.position(FIRST) == wanted


class TestCommitting:
    async def test_only_what_was_returned_is_committed(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, FIRST, "a0", "a1", "a2", "a3")
        from_begin(consumer, FIRST)
        await names(consumer)
        await settle()  # a2 and a3 have come already
        await consumer.commit_all()
        assert broker.offsets == {("readers", "orders", 0): 2}

    async def test_a_seek_back_is_committed_as_a_reset_once(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, FIRST, "a0", "a1", "a2", "a3")
        from_begin(consumer, FIRST)
        await names(consumer)
        await names(consumer)
        await consumer.commit_all()
        consumer.seek(FIRST, 1)
        await consumer.commit_all()
        assert broker.offsets["readers", "orders", 0] == 1
        assert await names(consumer) == ["a1", "a2"]
        await consumer.commit_all()
        assert broker.offsets["readers", "orders", 0] == 3
        assert [one.set for one in broker.commits] == [True, True, False]

    async def test_a_seek_is_committed_also_after_a_commit_that_failed(
        self, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        put(broker, FIRST, "a0", "a1")
        from_begin(consumer, FIRST)
        broker.unary_errors[methods.UPDATE_CONSUMER_OFFSET.path].append(BrokerUnreachableError("gone"))
        with pytest.raises(BrokerUnreachableError):
            await consumer.commit_all()
        await consumer.commit_all()
        assert broker.offsets == {("readers", "orders", 0): 0}

    async def test_a_reset_from_elsewhere_is_followed(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, FIRST, "a0", "a1", "a2", "a3")
        from_begin(consumer, FIRST)
        await names(consumer)
        await consumer.commit_all()
        broker.progress.set(("readers", "orders", 0), 1)
        await names(consumer)
        await consumer.commit_all()
        assert broker.offsets["readers", "orders", 0] == 1
        assert await names(consumer) == ["a1", "a2"]
        await consumer.commit_all()
        assert broker.offsets["readers", "orders", 0] == 3

    async def test_a_reset_moves_the_position_too(self, broker: FakeBroker, consumer: PullConsumer) -> None:
        put(broker, FIRST, "a0", "a1", "a2")
        from_begin(consumer, FIRST)
        await names(consumer)
        await consumer.reset(FIRST, 1)
        assert await names(consumer) == ["a1", "a2"]

    async def test_every_broker_is_told_of_its_own_queues_in_one_request(
        self, cluster: FakeCluster, broker: FakeBroker, consumer: PullConsumer
    ) -> None:
        other = cluster.add_broker("b")
        other.create_topic("orders", 1)
        theirs = MessageQueue("orders", "b", 0)
        put(broker, FIRST, "a0")
        put(broker, SECOND, "b0")
        put(other, theirs, "z0")
        for queue in (FIRST, SECOND, theirs):
            await consumer.commit(queue, 0)
        consumer.assign([FIRST, SECOND, theirs])
        assert sorted([*await names(consumer), *await names(consumer), *await names(consumer)]) == ["a0", "b0", "z0"]
        broker.commits.clear()
        other.commits.clear()
        await consumer.commit_all()
        assert [[(one.queue_id, one.offset) for one in request.queues] for request in broker.commits] == [
            [(0, 1), (1, 1)]
        ]
        assert [[(one.queue_id, one.offset) for one in request.queues] for request in other.commits] == [[(0, 1)]]
