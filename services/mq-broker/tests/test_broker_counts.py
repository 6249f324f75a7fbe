"""How many topics and groups clients can make by naming them: none in vain, and no more than the limits say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.config import BrokerConfig, parse_config
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import COUNTED_CLIENTS_MAX, CountLimits, Creations, RejectedError, TooManyError
from mq_broker.core.pulling import PullQuery
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.topics import TopicConfig
from mq_broker.processor import consuming
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.processor.consuming import ConsumeFromWhere
from mq_broker.processor.producing import IncomingBatch
from mq_broker.testing import RecordingSession, broker_options, client, incoming, produce, running_broker
from mqproto.codes import ResponseCode
from mqproto.conf import ConfigError
from mqproto.names import retry_topic
from osenv import SimClock, SimDisk


def options(**counts: str) -> BrokerOptions:
    config = parse_config({"topicCountMax": "12", "subscriptionGroupCountMax": "3", **counts})
    made = config.broker_options(10_911)
    return replace(broker_options(), topic_limits=made.topic_limits, group_limits=made.group_limits)


def named(broker: Broker) -> set[str]:
    return {config.topic for config in broker.topics.all()}


@pytest.mark.parametrize(
    "batch",
    [
        IncomingBatch("new", 0, 1, b"nonsense"),
        IncomingBatch("new", 0, 0, b""),
        incoming("new", [b"x"], queue_id=4),
        incoming("new", [bytes(70_000)]),
    ],
    ids=["no record", "empty", "no such queue", "larger than a file of the log"],
)
async def test_a_batch_that_is_rejected_makes_no_topic(batch: IncomingBatch) -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        before = named(broker)
        (outcome,) = await produce(broker, batch)
        assert outcome.code in {ResponseCode.MESSAGE_ILLEGAL, ResponseCode.TOPIC_NOT_EXIST}
        assert named(broker) == before


async def test_beyond_the_total_no_topic_is_made_and_those_that_exist_work() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock, options=options()) as broker:
        room = 12 - len(named(broker))
        outcomes = await produce(broker, *[incoming(f"t{n}", [b"x"]) for n in range(room + 2)])
        assert [outcome.code for outcome in outcomes] == [ResponseCode.SUCCESS] * room + [
            ResponseCode.TOPIC_NOT_EXIST
        ] * 2
        assert "topicCountMax=12" in outcomes[-1].remark
        with pytest.raises(RejectedError, match="topicCountMax=12"):
            await broker.topic_administration.update(TopicConfig("operators", 1, 1))
        await broker.topic_administration.update(TopicConfig("t0", 8, 8))
        await broker.topic_administration.delete("t1")
        (again,) = await produce(broker, incoming("new", [b"x"]))
        assert again.code is ResponseCode.SUCCESS
    async with running_broker(disk, clock, options=options(topicCountMax="2")) as broker:
        kept, new = await produce(broker, incoming("new", [b"y"]), incoming("newer", [b"y"]))
        assert (kept.code, new.code) == (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST)


async def test_one_connection_makes_no_more_topics_than_its_share() -> None:
    async with running_broker(SimDisk(), SimClock(), options=options(autoCreatedTopicsPerClient="2")) as broker:
        batches = [incoming(f"t{n}", [b"x"]) for n in range(3)]
        outcomes = broker.producing.put(batches, "ipv4:127.0.0.1:1")
        assert [one.code for one in outcomes] == [ResponseCode.SUCCESS] * 2 + [ResponseCode.TOPIC_NOT_EXIST]
        assert "autoCreatedTopicsPerClient=2" in outcomes[2].remark
        (other,) = broker.producing.put(batches[2:], "ipv4:127.0.0.1:2")
        assert other.code is ResponseCode.SUCCESS


async def test_beyond_the_total_no_group_is_made_by_heartbeat_pull_send_back_or_operator() -> None:
    async with running_broker(SimDisk(), SimClock(), options=options()) as broker:
        await produce(broker, incoming("t", [b"x"]))
        code, remark = broker.sessions.heartbeat(RecordingSession(), client("a", "g1", "g2", "g3", "g4"))
        assert code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "subscriptionGroupCountMax=3" in remark
        assert [group.group for group in broker.groups.all()] == ["g1", "g2", "g3"]
        assert retry_topic("g4") not in named(broker)
        pulled = await broker.pulling.pull(PullQuery("g5", "t", 0, 0, 1, 1, "*"))
        assert (pulled.code, "subscriptionGroupCountMax" in pulled.remark) == (
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            True,
        )
        sent_back, remark, _ = await broker.send_back.send_back("g5", 0, delay_level=0, max_reconsume_times=0)
        assert sent_back is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        with pytest.raises(RejectedError, match="subscriptionGroupCountMax=3"):
            await broker.group_administration.update(SubscriptionGroup("g5"))
        await broker.group_administration.update(SubscriptionGroup("g1", retry_max_times=2))


async def test_one_connection_makes_no_more_groups_than_its_share() -> None:
    async with running_broker(SimDisk(), SimClock(), options=options(autoCreatedGroupsPerClient="1")) as broker:
        said = replace(client("a", "g1", "g2"), connection="ipv4:127.0.0.1:1")
        _, remark = broker.sessions.heartbeat(RecordingSession(), said)
        assert "autoCreatedGroupsPerClient=1" in remark
        assert [group.group for group in broker.groups.all()] == ["g1"]


def test_the_limits_are_checked_with_each_other() -> None:
    assert BrokerConfig().topic_count_max == 20_000
    with pytest.raises(ConfigError, match="subscriptionGroupCountMax=10000: allowed are 1 to 5000"):
        parse_config({"topicCountMax": "90000"})


def test_what_connections_have_made_is_remembered_of_so_many() -> None:
    creations = Creations(CountLimits("topic", 10**6, "total", 1, "share"))
    for number in range(COUNTED_CLIENTS_MAX + 1):
        creations.made(f"connection {number}")
    creations.check(0, "connection 0")
    with pytest.raises(TooManyError):
        creations.check(0, "connection 1")


async def test_offsets_of_groups_that_are_not_there_count_as_groups() -> None:
    async with running_broker(SimDisk(), SimClock(), options=options()) as broker:
        await produce(broker, incoming("t", [b"x"] * 5))
        for group in ("g1", "g2", "g3"):
            broker.offsets.commit(group, [("t", 0, Progress(1))])
        for report in ([("t", 0, Progress(1))], [("t", 1, Progress(0))]):
            with pytest.raises(RejectedError, match="subscriptionGroupCountMax=3"):
                broker.offsets.commit("g4", report)
        with pytest.raises(RejectedError, match="subscriptionGroupCountMax=3"):
            await broker.offsets.set("g4", [("t", 0, 1)])
        with pytest.raises(RejectedError, match="subscriptionGroupCountMax=3"):
            await broker.offsets.begin("g4", "t", 0, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        assert broker.consumer_offsets.topics_of("g4") == []
        broker.offsets.commit("g1", [("t", 0, Progress(2)), ("t", 1, Progress(0))])
        await broker.group_administration.update(SubscriptionGroup("g4"))
        broker.offsets.commit("g4", [("t", 0, Progress(1))])


async def test_beyond_the_limit_of_offsets_those_that_exist_move_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consuming, "CONSUMER_OFFSETS_MAX", 2)
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock) as broker:
        await produce(broker, incoming("t", [b"x"] * 5))
        broker.offsets.commit("g", [("t", 0, Progress(1)), ("t", 1, Progress(0))])
    async with running_broker(disk, clock) as broker:
        with pytest.raises(RejectedError, match="keeps 2 offsets of groups and takes no new ones; allowed are 2"):
            broker.offsets.commit("g", [("t", 0, Progress(3)), ("t", 2, Progress(0))])
        assert broker.consumer_offsets.query("g", "t", 0) == 3
        broker.consumer_offsets.forget_topic("t")
        broker.offsets.commit("h", [("t", 2, Progress(0))])
        assert (broker.consumer_offsets.count, broker.consumer_offsets.group_count) == (1, 1)
