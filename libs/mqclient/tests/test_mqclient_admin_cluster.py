"""An operator's calls over several brokers: the brokers that they ask, the merged answers, and the errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from hourglass.mq.v1 import admin_service_pb2 as pb
from mqclient import (
    Admin,
    BrokerRejectedError,
    BrokerUnavailableError,
    BrokerUnreachableError,
    IllegalArgumentError,
    IllegalStateError,
    MessageQueue,
    MQClientError,
    NoRouteError,
)
from mqclient.admin import (
    ClusterBroker,
    DelayLevelStatus,
    LifeEventKind,
    OffsetChange,
    QueueConsumeStats,
    QueueStats,
    SubscriptionGroupConfig,
    TopicConfig,
)
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of
from mqproto.codes import PullStatus
from mqproto.names import SCHEDULE_TOPIC

START_MS = 1_700_000_000_000
ADDRESS_A, ADDRESS_B = "127.0.0.1:10911", "127.0.0.1:10912"

Call = Callable[[Admin], Awaitable[object]]


def two(topic: str | None = "orders") -> tuple[FakeCluster, FakeBroker, FakeBroker]:
    cluster, (a, b) = FakeCluster.of("a", "b", topic=topic, queue_count=1)
    return cluster, a, b


class TestWhoIsAsked:
    @pytest.mark.parametrize(
        ("where", "changed"),
        [
            ({}, {"a", "b"}),
            ({"cluster_name": "fake"}, {"a", "b"}),
            ({"broker_address": ADDRESS_B}, {"b"}),
        ],
    )
    async def test_every_master_or_those_of_a_cluster_or_one(self, where: dict[str, Any], changed: set[str]) -> None:
        cluster, *brokers = two()
        async with Admin(cluster.url) as admin:
            await admin.update_topic("new", read_queue_count=3, write_queue_count=2, **where)
            await admin.update_subscription_group(SubscriptionGroupConfig("g", retry_max_times=3), **where)
            assert {broker.name for broker in brokers if "new" in broker.topics} == changed
            assert {broker.name for broker in brokers if "g" in broker.admin.groups} == changed
            await admin.update_topic_perm("new", 4, **where)
            assert {broker.topics["new"].perm for broker in brokers if broker.name in changed} == {4}
            await admin.delete_subscription_group("g", **where)
            await admin.delete_topic("new", **where)
            assert [broker.name for broker in brokers if "new" in broker.topics or broker.admin.groups] == []

    async def test_a_cluster_without_masters_is_said_so(self) -> None:
        cluster, *_ = two()
        async with Admin(cluster.url) as admin:
            with pytest.raises(NoRouteError, match="no master is registered in elsewhere"):
                await admin.delete_topic("orders", cluster_name="elsewhere")

    async def test_a_cluster_and_an_address_at_once_make_no_sense(self) -> None:
        cluster, *_ = two()
        async with Admin(cluster.url) as admin:
            with pytest.raises(IllegalArgumentError, match="not both"):
                await admin.update_topic("t", cluster_name="fake", broker_address=ADDRESS_A)

    @pytest.mark.parametrize(
        ("call", "sentence"),
        [
            (lambda admin: admin.update_topic("bad topic"), "not allowed"),
            (lambda admin: admin.update_topic_perm("bad topic", 6), "not allowed"),
            (lambda admin: admin.delete_topic(SCHEDULE_TOPIC), "belongs to the queue itself"),
            (lambda admin: admin.update_subscription_group(SubscriptionGroupConfig("bad group")), "not allowed"),
            (lambda admin: admin.delete_subscription_group(""), "is empty"),
            (lambda admin: admin.reset_offset_by_time("g", "orders", -2), "-2 is no time"),
            (lambda admin: admin.reset_offset_by_time("bad group", "orders", 0), "not allowed"),
            (lambda admin: admin.pull(MessageQueue("orders", "a", 0), 0, max_messages=0), "ask for 1 at least"),
            (lambda admin: admin.pull(MessageQueue("orders", "a", 0), 0, expression="|| *"), "tag expression"),
        ],
    )
    async def test_what_makes_no_sense_is_rejected_before_any_broker_is_asked(self, call: Call, sentence: str) -> None:
        cluster, *_ = two()
        async with Admin(cluster.url) as admin:
            with pytest.raises(IllegalArgumentError, match=sentence):
                await call(admin)

    @pytest.mark.parametrize(
        "call",
        [
            lambda admin: admin.topic_list(),
            lambda admin: admin.topic_configs(ADDRESS_A),
            lambda admin: admin.delete_topic("orders"),
            lambda admin: admin.cluster_list(),
            lambda admin: admin.broker_status(ADDRESS_A),
            lambda admin: admin.consume_stats("g"),
            lambda admin: admin.explain("key"),
        ],
    )
    async def test_before_its_start_it_asks_no_broker(self, call: Call) -> None:
        cluster, *_ = two()
        with pytest.raises(IllegalStateError, match="admin is not running"):
            await call(Admin(cluster.url))


class TestErrors:
    async def test_a_broker_that_was_given_by_address_is_named_by_it(self) -> None:
        cluster, *_ = two()
        async with Admin(cluster.url) as admin, consumer_of(cluster, RecordingListener()):
            sentence = f"broker {ADDRESS_B} answered NO_PERMISSION: it has active members"
            with pytest.raises(BrokerRejectedError, match=sentence):
                await admin.delete_subscription_group("closers", broker_address=ADDRESS_B)

    async def test_a_rejection_after_a_success_names_the_broker_that_was_done(self) -> None:
        cluster, a, b = two()
        b.unary_errors["/hourglass.mq.v1.AdminService/UpdateTopic"].append(
            BrokerRejectedError(16, "not this time", "b")
        )
        async with Admin(cluster.url) as admin:
            with pytest.raises(BrokerRejectedError) as rejected:
                await admin.update_topic("new")
        assert str(rejected.value) == "broker b answered NO_PERMISSION: not this time; done before: a"
        assert "new" in a.topics

    async def test_a_broker_that_cannot_be_reached_is_no_other_kind_of_error_then(self) -> None:
        cluster, _, b = two()
        b.unary_errors["/hourglass.mq.v1.AdminService/DeleteTopic"].append(BrokerUnreachableError("nothing listens"))
        async with Admin(cluster.url) as admin:
            with pytest.raises(BrokerUnreachableError, match=r"^nothing listens; done before: a$"):
                await admin.delete_topic("orders")

    @pytest.mark.parametrize(
        ("call", "code"),
        [
            (lambda admin: admin.delete_topic("t"), "TOPIC_NOT_EXIST"),
            (lambda admin: admin.update_topic_perm("t", 4), "TOPIC_NOT_EXIST"),
            (lambda admin: admin.topic_stats("t"), "TOPIC_NOT_EXIST"),
            (lambda admin: admin.delete_subscription_group("g"), "SUBSCRIPTION_GROUP_NOT_EXIST"),
            (lambda admin: admin.consume_stats("g"), "SUBSCRIPTION_GROUP_NOT_EXIST"),
            (lambda admin: admin.reset_offset_by_time("g", "t", 0), "TOPIC_NOT_EXIST"),
            (lambda admin: admin.reset_offset_by_time("g", "orders", 0), "SUBSCRIPTION_GROUP_NOT_EXIST"),
        ],
    )
    async def test_what_one_broker_lacks_is_fine_and_what_all_lack_is_an_error(self, call: Call, code: str) -> None:
        cluster, _, b = two()
        async with Admin(cluster.url) as admin:
            with pytest.raises((BrokerUnavailableError, BrokerRejectedError), match=f"broker b answered {code}"):
                await call(admin)
            b.create_topic("t")
            b.offsets["g", "t", 0] = b.offsets["g", "orders", 0] = 0
            b.admin.groups["g"] = pb.SubscriptionGroupConfig(group="g")
            await call(admin)


class TestAnswers:
    async def test_topics_of_a_broker_keep_their_counts_when_the_permission_changes(self) -> None:
        cluster, a, _ = two(topic=None)
        a.topics.clear()
        async with Admin(cluster.url) as admin:
            await admin.update_topic("t", read_queue_count=5, write_queue_count=3, broker_address=ADDRESS_A)
            await admin.update_topic_perm("t", 2)
            assert await admin.topic_configs(ADDRESS_A) == [TopicConfig("t", 5, 3, 2)]

    async def test_queues_and_their_statistics(self) -> None:
        cluster, _, b = two()
        b.put("orders", 0, b"x")
        async with Admin(cluster.url) as admin:
            queue_a, queue_b = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)
            stored_ms = cluster.clock.wall_ms()
            assert await admin.topic_stats("orders") == [
                QueueStats(queue_a, 0, 0, 0),
                QueueStats(queue_b, 0, 1, stored_ms, len(b.queues["orders", 0][0])),
            ]
            assert (await admin.queue_offsets(queue_a), await admin.queue_offsets(queue_b)) == ((0, 0), (0, 1))
            with pytest.raises(NoRouteError, match="registered as 'c'"):
                await admin.queue_offsets(MessageQueue("orders", "c", 0))

    async def test_brokers_their_status_and_configuration(self) -> None:
        cluster, _, b = two()
        b.put("orders", 0, b"x")
        async with Admin(cluster.url) as admin:
            assert await admin.cluster_list() == [
                ClusterBroker("fake", "a", 0, ADDRESS_A),
                ClusterBroker("fake", "b", 0, ADDRESS_B),
            ]
            assert [status.messages_stored for status in await admin.broker_statuses()] == [0, 1]
            status = await admin.broker_status(ADDRESS_B)
            assert (status.broker_name, status.address, status.messages_stored) == ("b", ADDRESS_B, 1)
            assert status.delay_levels == (DelayLevelStatus(16, 1_800_000, 2, 1_700_000_000_007, 9, 1, 3, 4),)
            assert await admin.broker_config(ADDRESS_B) == {"brokerName": "b"}

    async def test_groups_come_back_as_they_were_made(self) -> None:
        cluster, *_ = two()
        groups = [SubscriptionGroupConfig("a"), SubscriptionGroupConfig("g", False, False, 3, 2)]
        async with Admin(cluster.url) as admin:
            for group in groups:
                await admin.update_subscription_group(group)
            assert await admin.subscription_groups(ADDRESS_B) == groups

    async def test_progress_of_a_group_over_all_brokers(self) -> None:
        cluster, a, b = two()
        for broker, count in ((a, 3), (b, 2)):
            for number in range(count):
                broker.put("orders", 0, b"%d" % number)
        a.offsets["closers", "orders", 0] = 2
        b.admin.groups["closers"] = pb.SubscriptionGroupConfig(group="closers")
        async with Admin(cluster.url) as admin:
            stats = await admin.consume_stats("closers", "orders")
            assert stats.queues == (
                QueueConsumeStats(MessageQueue("orders", "a", 0), 3, 2, 0),
                QueueConsumeStats(MessageQueue("orders", "b", 0), 2, -1, 0),
            )
            assert ([queue.lag for queue in stats.queues], stats.lag, stats.client_ids) == ([1, 2], 3, ())
            assert [queue.queue.broker_name for queue in (await admin.consume_stats("closers")).queues] == ["a"]

    async def test_a_reset_tells_before_and_now(self) -> None:
        cluster, a, b = two()
        for broker in (a, b):
            broker.put("orders", 0, b"x")
            await cluster.clock.advance(1)
        a.offsets["g", "orders", 0] = b.offsets["g", "orders", 0] = 1
        async with Admin(cluster.url) as admin:
            queue_a, queue_b = MessageQueue("orders", "a", 0), MessageQueue("orders", "b", 0)
            changes = await admin.reset_offset_by_time("g", "orders", START_MS + 500)
            assert changes == {queue_a: OffsetChange(1, 1), queue_b: OffsetChange(1, 0)}
            assert await admin.reset_offset_by_time("g", "orders", -1, force=False) == {
                queue_a: OffsetChange(1, 1),
                queue_b: OffsetChange(0, 0),
            }
            assert (await admin.reset_offset_by_time("g", "orders", -1))[queue_b] == OffsetChange(0, 1)

    async def test_a_pull_brings_messages_and_says_where_to_go_on(self) -> None:
        cluster, a, _ = two()
        for tag in ("red", "blue", "red"):
            a.put("orders", 0, tag.encode(), {"TAGS": tag})
        queue = MessageQueue("orders", "a", 0)
        async with Admin(cluster.url) as admin:
            found = await admin.pull(queue, 0, max_messages=2)
            assert (found.status, found.next_begin_offset, found.max_offset) == (PullStatus.FOUND, 2, 3)
            assert [(message.body, message.queue_offset) for message in found.messages] == [(b"red", 0), (b"blue", 1)]
            (blue,) = (await admin.pull(queue, 0, expression="blue")).messages
            assert blue.queue_offset == 1
            nothing = await admin.pull(queue, 3)
            assert (nothing.status, nothing.next_begin_offset, nothing.messages) == (PullStatus.NO_NEW_MSG, 3, ())
            assert (await admin.pull(queue, 9)).status is PullStatus.OFFSET_ILLEGAL
            with pytest.raises(BrokerUnavailableError, match="TOPIC_NOT_EXIST"):
                await admin.pull(MessageQueue("missing", "a", 0), 0)

    async def test_a_life_is_told_by_time_with_what_is_the_case_now_last(self) -> None:
        cluster, a, b = two()
        a.admin.life = [_event(30, LifeEventKind.DELIVERED), _event(0, LifeEventKind.UNCONSUMED)]
        b.admin.life = [_event(10, LifeEventKind.SENT), _event(0, LifeEventKind.CONSUMED)]
        async with Admin(cluster.url) as admin:
            life = await admin.explain("key", topic="orders", max_messages=7)
        assert [(event.timestamp_ms, event.kind, event.broker_name) for event in life] == [
            (10, LifeEventKind.SENT, "b"),
            (30, LifeEventKind.DELIVERED, "a"),
            (0, LifeEventKind.UNCONSUMED, "a"),
            (0, LifeEventKind.CONSUMED, "b"),
        ]
        assert a.admin.requests == [pb.ExplainMessageRequest(topic="orders", key="key", max_messages=7)]

    async def test_the_kinds_of_a_life_are_the_wire_s(self) -> None:
        assert {kind.name: kind.value for kind in LifeEventKind} == {
            name: number for name, number in pb.LifeEventKind.items() if number
        }


def _event(timestamp_ms: int, kind: LifeEventKind) -> pb.LifeEvent:
    return pb.LifeEvent(timestamp_ms=timestamp_ms, kind=pb.LifeEventKind.ValueType(kind))


async def test_all_of_it_is_one_tree_of_errors() -> None:
    cluster, *brokers = two()
    for broker in brokers:
        broker.down = True
    async with Admin(cluster.url) as admin:
        with pytest.raises(MQClientError):
            await admin.broker_status(ADDRESS_A)
