"""An operator's calls on a broker with a real store in memory: what they change is so for producers and consumers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mq_broker.embedded import EmbeddedBroker
from mqclient import (
    Admin,
    BrokerRejectedError,
    BrokerUnavailableError,
    ConsumeFromWhere,
    Message,
    MessageQueue,
    NoRouteError,
    Producer,
    PushConsumer,
    SendResult,
)
from mqclient.admin import OffsetChange, SubscriptionGroupConfig, TopicConfig
from mqclient.testing import RecordingListener
from mqproto.codes import PullStatus
from mqproto.names import TOOLS_CONSUMER_GROUP, retry_topic
from osenv import SimClock

START_MS = 1_700_000_000_000
ADDRESS = "127.0.0.1:10911"
QUEUE = MessageQueue("t", "broker-a", 0)


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[EmbeddedBroker]:
    async with EmbeddedBroker("admin", clock=SimClock(START_MS)) as running:
        yield running


@pytest_asyncio.fixture
async def admin(broker: EmbeddedBroker) -> AsyncIterator[Admin]:
    async with Admin(broker.url) as running:
        await running.update_topic("t", read_queue_count=1, write_queue_count=1)
        yield running


async def send(broker: EmbeddedBroker, count: int) -> list[SendResult]:
    """A message a second."""
    results = []
    async with Producer("shop", broker.url) as producer:
        for number in range(count):
            results.append(await producer.send(Message("t", b"%d" % number, keys="k")))
            await broker.clock.advance(1)
    return results


def consumer_of(broker: EmbeddedBroker, listener: RecordingListener, group: str = "g") -> PushConsumer:
    consumer = PushConsumer(group, broker.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    consumer.subscribe("t")
    consumer.register_message_listener(listener)
    return consumer


class TestTopics:
    async def test_a_deleted_topic_is_gone_from_routes_lists_and_queries(
        self, broker: EmbeddedBroker, admin: Admin
    ) -> None:
        (sent, *_) = await send(broker, 2)
        await admin.delete_topic("t")
        assert "t" not in await admin.topic_list()
        assert "t" not in {config.topic for config in await admin.topic_configs(ADDRESS)}
        with pytest.raises(NoRouteError):
            await admin.topic_route("t")
        for call in (admin.topic_stats("t"), admin.pull(QUEUE, 0), admin.delete_topic("t")):
            with pytest.raises(BrokerUnavailableError, match="TOPIC_NOT_EXIST"):
                await call
        assert await admin.query_message_by_unique_key("t", sent.message_id) == []
        with pytest.raises(BrokerRejectedError, match="QUERY_NOT_FOUND"):
            await admin.view_message(sent.offset_message_id)

    async def test_made_again_it_goes_on_counting(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await send(broker, 3)
        await admin.delete_topic("t")
        await admin.update_topic("t", read_queue_count=1, write_queue_count=1)
        (sent,) = await send(broker, 1)
        assert (sent.queue_offset, await admin.queue_offsets(QUEUE)) == (3, (3, 4))
        (message,) = (await admin.pull(QUEUE, 3)).messages
        assert message.body == b"0"
        (found,) = await admin.query_message_by_unique_key("t", sent.message_id)
        assert found.queue_offset == 3

    async def test_a_permission_changes_and_the_queues_stay(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await admin.update_topic("t", read_queue_count=3, write_queue_count=2)
        await admin.update_topic_perm("t", 4)
        assert TopicConfig("t", 3, 2, 4) in await admin.topic_configs(ADDRESS)

    async def test_a_pull_of_an_operator_leaves_nothing_behind(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await send(broker, 3)
        topics, groups = await admin.topic_list(), await admin.subscription_groups(ADDRESS)
        found = await admin.pull(QUEUE, 1)
        assert (found.status, found.next_begin_offset) == (PullStatus.FOUND, 3)
        assert [message.body for message in found.messages] == [b"1", b"2"]
        assert (await admin.topic_list(), await admin.subscription_groups(ADDRESS)) == (topics, groups)
        assert TOOLS_CONSUMER_GROUP not in {group.group for group in groups}

    async def test_statistics_say_when_the_last_message_came(self, broker: EmbeddedBroker, admin: Admin) -> None:
        await send(broker, 3)
        (stats,) = await admin.topic_stats("t")
        assert (stats.queue, stats.min_offset, stats.max_offset) == (QUEUE, 0, 3)
        assert stats.last_update_timestamp_ms == START_MS + 2_000


class TestGroups:
    async def test_a_closed_group_consumes_again_when_it_is_opened(self, broker: EmbeddedBroker, admin: Admin) -> None:
        listener = RecordingListener()
        await admin.update_subscription_group(SubscriptionGroupConfig("g", consume_enable=False))
        async with consumer_of(broker, listener):
            await send(broker, 2)
            await broker.clock.advance(5)
            assert listener.bodies == []
            await admin.update_subscription_group(SubscriptionGroupConfig("g"))
            await broker.clock.until(lambda: listener.bodies == [b"0", b"1"])

    async def test_a_group_is_deleted_when_its_members_have_left(self, broker: EmbeddedBroker, admin: Admin) -> None:
        async with consumer_of(broker, RecordingListener()):
            with pytest.raises(BrokerRejectedError, match=r"NO_PERMISSION.*active members"):
                await admin.delete_subscription_group("g")
        await admin.delete_subscription_group("g", clean_offsets=True)
        assert await admin.subscription_groups(ADDRESS) == []
        assert retry_topic("g") not in await admin.topic_list()
        with pytest.raises(BrokerRejectedError, match="SUBSCRIPTION_GROUP_NOT_EXIST"):
            await admin.consume_stats("g")

    async def test_progress_and_members(self, broker: EmbeddedBroker, admin: Admin) -> None:
        listener = RecordingListener()
        async with consumer_of(broker, listener):
            await send(broker, 3)
            await broker.clock.until(lambda: len(listener.bodies) == 3)
            (member,) = (await admin.consume_stats("g")).client_ids
        await send(broker, 2)
        stats = await admin.consume_stats("g", "t")
        (queue,) = stats.queues
        assert (queue.queue, queue.broker_offset, queue.consumer_offset, stats.lag) == (QUEUE, 5, 3, 2)
        assert queue.last_timestamp_ms == START_MS + 2_000
        assert (stats.client_ids, member != "") == ((), True)


class TestReset:
    async def test_an_active_consumer_consumes_again_from_there(self, broker: EmbeddedBroker, admin: Admin) -> None:
        listener = RecordingListener()
        async with consumer_of(broker, listener):
            await send(broker, 4)
            await broker.clock.until(lambda: len(listener.bodies) == 4)
            await broker.clock.advance(15)  # its offsets are committed
            assert await admin.reset_offset_by_time("g", "t", START_MS + 2_000) == {QUEUE: OffsetChange(4, 2)}
            await broker.clock.until(lambda: len(listener.bodies) == 6)
            assert listener.bodies[4:] == [b"2", b"3"]
        assert (await admin.consume_stats("g", "t")).lag == 0

    async def test_without_force_it_only_goes_back(self, broker: EmbeddedBroker, admin: Admin) -> None:
        listener = RecordingListener()
        async with consumer_of(broker, listener):
            await send(broker, 3)
            await broker.clock.until(lambda: len(listener.bodies) == 3)
        await send(broker, 2)
        assert await admin.reset_offset_by_time("g", "t", -1, force=False) == {QUEUE: OffsetChange(3, 3)}
        assert await admin.reset_offset_by_time("g", "t", START_MS, force=False) == {QUEUE: OffsetChange(3, 0)}
        assert await admin.reset_offset_by_time("g", "t", -1) == {QUEUE: OffsetChange(0, 5)}


@pytest.mark.parametrize("end", ["stop", "kill", "lose_power"])
async def test_every_change_survives_a_restart(broker: EmbeddedBroker, admin: Admin, end: str) -> None:
    await send(broker, 3)
    group = SubscriptionGroupConfig("g", consume_broadcast_enable=False, retry_max_times=2, retry_queue_count=3)
    await admin.update_subscription_group(group)
    await admin.update_subscription_group(SubscriptionGroupConfig("gone"))
    await admin.reset_offset_by_time("g", "t", START_MS + 1_000)
    await admin.update_topic("deleted")
    await admin.delete_topic("deleted")
    await admin.delete_subscription_group("gone")
    await getattr(broker, end)()
    await broker.start()
    async with Admin(broker.url) as fresh:
        assert await fresh.subscription_groups(ADDRESS) == [group]
        assert "deleted" not in await fresh.topic_list()
        assert (await fresh.consume_stats("g")).queues[0].consumer_offset == 1


async def test_the_configuration_is_the_one_in_force(broker: EmbeddedBroker, admin: Admin) -> None:
    config = await admin.broker_config(ADDRESS)
    assert config["brokerName"] == "broker-a"
    assert config["flushDiskType"] == "SYNC_FLUSH"
    assert list(config) == sorted(config)
