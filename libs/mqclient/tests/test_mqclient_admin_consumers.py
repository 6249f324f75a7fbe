"""An operator's calls about active members: merged over the brokers; one message for one member.

Mechanisms L11-L13.
"""

from __future__ import annotations

import pytest

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import common_pb2 as common_pb
from mqclient import (
    Admin,
    BrokerRejectedError,
    ConsumeFromWhere,
    IllegalArgumentError,
    MessageModel,
    MessageQueue,
    NoRouteError,
)
from mqclient.admin import (
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    OffsetChange,
    ProcessQueueInfo,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConsumeStats,
)
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of
from mqproto.codes import ResponseCode

GROUP = "closers"


def two() -> tuple[FakeCluster, FakeBroker, FakeBroker]:
    cluster, (a, b) = FakeCluster.of("a", "b", topic="orders", queue_count=2)
    return cluster, a, b


class TestConnections:
    async def test_a_member_is_told_once_with_the_brokers_that_know_it(self) -> None:
        cluster, a, b = two()
        async with Admin(cluster.url) as admin, consumer_of(cluster, RecordingListener(), tags="paid", member="one"):
            a.admin.last_heartbeat_timestamp_ms, b.admin.last_heartbeat_timestamp_ms = 5, 7
            data = ConsumerData(
                MessageModel.CLUSTERING,
                ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
                orderly=False,
                subscriptions=(
                    SubscriptionData("%RETRY%closers", "*", "TAG"),
                    SubscriptionData("orders", "paid", "TAG"),
                ),
            )
            assert await admin.consumer_connections(GROUP) == [ConsumerConnection("10.0.0.1@one", data, 7, ("a", "b"))]

    async def test_a_group_without_members_has_none_and_an_unknown_one_is_rejected(self) -> None:
        cluster, a, _ = two()
        async with Admin(cluster.url) as admin:
            with pytest.raises(BrokerRejectedError, match="SUBSCRIPTION_GROUP_NOT_EXIST"):
                await admin.consumer_connections(GROUP)
            await admin.update_subscription_group(SubscriptionGroupConfig(GROUP), broker_address=a.address)
            assert await admin.consumer_connections(GROUP) == []


class TestRunningInfo:
    async def test_each_broker_tells_of_its_own_queues(self) -> None:
        cluster, a, b = two()
        for broker, offset in ((a, 3), (b, 4)):
            info = broker_pb.ConsumerRunningInfo(
                client_id="c", start_timestamp_ms=9, consume_concurrency=20, suspended=True
            )
            info.data.orderly = True
            info.data.message_model = broker_pb.BROADCASTING
            info.queues.add(
                topic="orders", queue_id=1, commit_offset=offset, pull_offset=8, cached_messages=2, locked=True
            )
            info.stats.add(topic="orders", consume_ok_tps=2.5, consume_failed_messages=1)
            broker.admin.running_info["c"] = info
        async with Admin(cluster.url) as admin:
            assert await admin.consumer_running_info(GROUP, "c") == ConsumerRunningInfo(
                "c",
                ConsumerData(MessageModel.BROADCASTING, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, True, ()),
                start_timestamp_ms=9,
                consume_concurrency=20,
                suspended=True,
                queues=(
                    ProcessQueueInfo(MessageQueue("orders", "a", 1), 3, 8, 2, 0, True, 0, 0),
                    ProcessQueueInfo(MessageQueue("orders", "b", 1), 4, 8, 2, 0, True, 0, 0),
                ),
                stats=(TopicConsumeStats("orders", 0, 0, 0, 2.5, 0, 1),),
            )

    async def test_a_broker_that_does_not_know_the_member_is_passed_over_and_all_of_them_are_a_rejection(self) -> None:
        cluster, _, b = two()
        async with Admin(cluster.url) as admin:
            with pytest.raises(BrokerRejectedError, match="c is not here") as rejected:
                await admin.consumer_running_info(GROUP, "c")
            assert rejected.value.code == ResponseCode.CONSUMER_NOT_ONLINE
            b.admin.running_info["c"] = broker_pb.ConsumerRunningInfo(client_id="c")
            assert (await admin.consumer_running_info(GROUP, "c")).client_id == "c"


class TestConsumingDirectly:
    async def test_the_broker_that_has_the_message_is_asked(self) -> None:
        cluster, a, b = two()
        b.put("orders", 0, b"first")
        b.put("orders", 0, b"second", {"KEYS": "k"})
        b.admin.consumed = broker_pb.ConsumeDirectlyResult(result=broker_pb.CR_LATER, remark="busy", spent_ms=4)
        async with Admin(cluster.url) as admin:
            (message,) = await admin.query_message("orders", "k")
            outcome = ConsumeDirectlyResult(ConsumeResult.CR_LATER, "busy", 4)
            assert await admin.consume_message_directly(GROUP, "c", message) == outcome
            message.broker_name = b.address  # as `view_message` tells it
            assert await admin.consume_message_directly(GROUP, "c", message) == outcome
            request = admin_pb.ConsumeMessageDirectlyRequest(group=GROUP, client_id="c", log_offset=message.log_offset)
            assert (a.admin.requests, b.admin.requests) == ([], [request, request])

    async def test_an_id_by_position_names_the_broker(self) -> None:
        cluster, a, b = two()
        async with Admin(cluster.url) as admin:
            await admin.consume_message_directly(GROUP, "c", "7F00000100002AA00000000000000011")
            assert [request.log_offset for request in b.admin.requests] == [0x11]
            assert a.admin.requests == []
            with pytest.raises(IllegalArgumentError):
                await admin.consume_message_directly(GROUP, "c", "nonsense")


class TestResetByQueue:
    async def test_only_the_named_queues_are_set_each_at_its_broker(self) -> None:
        cluster, a, b = two()
        a.offsets[GROUP, "orders", 0] = b.offsets[GROUP, "orders", 0] = b.offsets[GROUP, "orders", 1] = 3
        wanted = {MessageQueue("orders", "b", 1): 7, MessageQueue("orders", "a", 0): 1}
        async with Admin(cluster.url) as admin:
            changes = await admin.reset_offset_by_queue(GROUP, wanted)
        assert changes == {
            MessageQueue("orders", "a", 0): OffsetChange(3, 1),
            MessageQueue("orders", "b", 1): OffsetChange(3, 7),
        }
        assert a.offsets == {(GROUP, "orders", 0): 1}
        assert b.offsets == {(GROUP, "orders", 0): 3, (GROUP, "orders", 1): 7}
        assert [list(request.offsets) for request in a.admin.requests] == [
            [common_pb.QueueOffset(topic="orders", queue_id=0, offset=1)]
        ]

    async def test_what_makes_no_sense_is_rejected_before_any_broker_is_asked(self) -> None:
        cluster, a, _ = two()
        queue = MessageQueue("orders", "a", 0)
        async with Admin(cluster.url) as admin:
            with pytest.raises(IllegalArgumentError, match="offsets are 0 and more"):
                await admin.reset_offset_by_queue(GROUP, {queue: -1})
            with pytest.raises(NoRouteError, match="'z'"):
                await admin.reset_offset_by_queue(GROUP, {queue: 0, MessageQueue("orders", "z", 0): 0})
        assert a.admin.requests == []


async def test_the_switch_for_different_subscriptions_travels() -> None:
    cluster, a, _ = two()
    async with Admin(cluster.url) as admin:
        config = SubscriptionGroupConfig(GROUP, different_subscriptions_allowed=True)
        await admin.update_subscription_group(config)
        assert await admin.subscription_groups(a.address) == [config]
