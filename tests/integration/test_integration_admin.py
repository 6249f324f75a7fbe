"""An operator's changes on real processes, two brokers and two name servers: known everywhere when the call returns,
and still so after SIGKILL.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hourglass_local.cluster import Cluster
from hourglass_local.waiting import eventually
from mqclient import (
    Admin,
    BrokerRejectedError,
    BrokerUnavailableError,
    ConsumeFromWhere,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    NoRouteError,
    Producer,
    PushConsumer,
)
from mqclient.admin import ClusterBroker, OffsetChange, SubscriptionGroupConfig, TopicConfig
from mqproto.names import retry_topic

TOPIC, GROUP = "flights", "auditors"
QUEUES = [MessageQueue(TOPIC, name, 0) for name in ("broker-a", "broker-b")]
MESSAGES_EACH = 5
TIMEOUT_S = 20

pytestmark = pytest.mark.processes


class Inbox:
    """A listener that keeps what it gets."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, messages: list[MessageExt]) -> ConsumeStatus:
        self.bodies += [message.body for message in messages]
        return ConsumeStatus.CONSUME_SUCCESS


def auditor(cluster: Cluster, inbox: Inbox) -> PushConsumer:
    """Consumes everything in the topic since its beginning; not started."""
    made = PushConsumer(GROUP, cluster.url, consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
    made.subscribe(TOPIC)
    made.register_message_listener(inbox)
    return made


async def send_to_each(cluster: Cluster) -> list[bytes]:
    """As many messages to each broker."""
    bodies = []
    async with Producer("flights", cluster.url) as producer:
        for number in range(MESSAGES_EACH):
            for broker in range(2):
                bodies.append(b"%d of %d" % (number, broker))
                await producer.send(
                    Message(TOPIC, bodies[-1]),
                    selector=lambda queues, _, index: queues[index],
                    selector_argument=broker,
                )
    return bodies


async def kill_and_start(cluster: Cluster) -> None:
    """Both brokers die at once, and come back on the same stores."""
    await asyncio.gather(*(broker.kill() for broker in cluster.brokers))
    for broker in cluster.brokers:
        broker.launch()
    await asyncio.gather(*(broker.wait_ready() for broker in cluster.brokers))
    await cluster.wait_registered()


async def make_topic(admin: Admin) -> None:
    await admin.update_topic(TOPIC, read_queue_count=1, write_queue_count=1)


async def test_brokers_topics_and_groups_are_listed_as_they_were_made(tmp_path: Path) -> None:
    async with Cluster(tmp_path, name_servers=2, brokers=2, orders=False) as cluster, Admin(cluster.url) as admin:
        first, second = cluster.broker_addresses
        assert await admin.cluster_list() == [
            ClusterBroker("DefaultCluster", "broker-a", 0, first),
            ClusterBroker("DefaultCluster", "broker-b", 0, second),
        ]
        config = await admin.broker_config(second)
        assert (config["brokerName"], config["listenPort"]) == ("broker-b", second.rpartition(":")[2])
        assert (await admin.broker_status(second)).broker_name == "broker-b"
        await make_topic(admin)
        await admin.update_topic(TOPIC, read_queue_count=3, write_queue_count=2, broker_address=second)
        await admin.update_topic_perm(TOPIC, 4)
        group = SubscriptionGroupConfig(GROUP, consume_enable=False, retry_max_times=3, retry_queue_count=2)
        await admin.update_subscription_group(group)
        await admin.update_subscription_group(SubscriptionGroupConfig("gone"))
        await admin.delete_subscription_group("gone", broker_address=first)
        await kill_and_start(cluster)
        assert TopicConfig(TOPIC, 1, 1, 4) in await admin.topic_configs(first)
        assert TopicConfig(TOPIC, 3, 2, 4) in await admin.topic_configs(second)
        assert await admin.subscription_groups(first) == [group]
        assert await admin.subscription_groups(second) == [group, SubscriptionGroupConfig("gone")]
        assert {queues.perm for queues in (await admin.topic_route(TOPIC)).queues} == {4}


@pytest.mark.mechanism("N11")
async def test_a_deleted_topic_is_gone_everywhere_at_once_and_stays_gone(tmp_path: Path) -> None:
    async with Cluster(tmp_path, name_servers=2, brokers=2, orders=False) as cluster, Admin(cluster.url) as admin:
        await make_topic(admin)
        await send_to_each(cluster)
        await admin.delete_topic(TOPIC)
        for address in cluster.name_server_addresses:
            async with Admin(f"mq://{address}") as of_one:
                with pytest.raises(NoRouteError):
                    await of_one.topic_route(TOPIC)
                assert TOPIC not in await of_one.topic_list()
        await kill_and_start(cluster)
        assert TOPIC not in await admin.topic_list()
        with pytest.raises(BrokerUnavailableError, match="TOPIC_NOT_EXIST"):
            await admin.delete_topic(TOPIC)
        await make_topic(admin)
        assert [await admin.queue_offsets(queue) for queue in QUEUES] == [(MESSAGES_EACH, MESSAGES_EACH)] * 2
        bodies = await send_to_each(cluster)
        found = [message.body for queue in QUEUES for message in (await admin.pull(queue, MESSAGES_EACH)).messages]
        assert sorted(found) == sorted(bodies)


async def test_a_group_begins_anew_when_its_offsets_are_reset(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=2, orders=False) as cluster, Admin(cluster.url) as admin:
        await make_topic(admin)
        bodies, inbox = await send_to_each(cluster), Inbox()
        async with auditor(cluster, inbox):
            await eventually(lambda: len(inbox.bodies) == len(bodies), TIMEOUT_S, "everything once")
            assert len((await admin.consume_stats(GROUP)).client_ids) == 1
            changes = await admin.reset_offset_by_time(GROUP, TOPIC, 0)
            assert {queue: change.now for queue, change in changes.items()} == dict.fromkeys(QUEUES, 0)
            await eventually(lambda: len(inbox.bodies) == 2 * len(bodies), TIMEOUT_S, "everything twice")
            with pytest.raises(BrokerRejectedError, match="NO_PERMISSION"):
                await admin.delete_subscription_group(GROUP)
        assert sorted(inbox.bodies) == sorted(2 * bodies)
        stats = await admin.consume_stats(GROUP, TOPIC)
        assert (stats.lag, stats.client_ids) == (0, ())
        back = dict.fromkeys(QUEUES, OffsetChange(MESSAGES_EACH, 0))
        assert await admin.reset_offset_by_time(GROUP, TOPIC, 0, force=False) == back
        await kill_and_start(cluster)
        assert (await admin.consume_stats(GROUP, TOPIC)).lag == len(bodies)
        await admin.delete_subscription_group(GROUP, clean_offsets=True)
        await kill_and_start(cluster)
        assert retry_topic(GROUP) not in await admin.topic_list()
        with pytest.raises(BrokerRejectedError, match="SUBSCRIPTION_GROUP_NOT_EXIST"):
            await admin.consume_stats(GROUP)
