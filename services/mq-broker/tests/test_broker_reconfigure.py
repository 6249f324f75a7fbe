"""A running broker follows other options; what is only read at start stays as it was."""

from __future__ import annotations

from dataclasses import replace

from mq_broker.core.limits import RetentionOptions
from mq_broker.core.replica_state import BrokerIdentity
from mq_broker.core.transactions import TransactionOptions
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.testing import (
    LOG_FILE_BYTES,
    RecordingSession,
    broker_options,
    client,
    half,
    incoming,
    produce,
    running_broker,
)
from mqproto.codes import ResponseCode
from mqproto.names import DEFAULT_TOPIC
from osenv import SimClock, SimDisk

GROUP = client("a", "readers")
RETENTION = RetentionOptions()


async def codes(broker: Broker, topic: str, body: bytes = b"x") -> list[ResponseCode]:
    return [outcome.code for outcome in await produce(broker, incoming(topic, [body]))]


async def test_topics_are_no_longer_made_and_then_made_again_with_other_queues() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        assert await codes(broker, "first") == [ResponseCode.SUCCESS]
        before = broker.topics.data_version
        broker.reconfigure(replace(broker_options(), auto_create_topics=False), RETENTION)
        assert await codes(broker, "second") == [ResponseCode.TOPIC_NOT_EXIST]
        assert await codes(broker, "first") == [ResponseCode.SUCCESS]
        assert broker.topics.get(DEFAULT_TOPIC) is None  # no client is sent here for a topic that is not there
        assert broker.topics.data_version > before  # and the name servers hear of it

        broker.reconfigure(replace(broker_options(), default_topic_queue_count=7), RETENTION)
        assert await codes(broker, "second") == [ResponseCode.SUCCESS]
        counts = {
            topic: config.queue_count
            for topic in ("first", "second", DEFAULT_TOPIC)
            if (config := broker.topics.get(topic))
        }
        assert counts == {"first": 4, "second": 7, DEFAULT_TOPIC: 7}


async def test_groups_are_no_longer_made() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        broker.reconfigure(replace(broker_options(), auto_create_groups=False), RETENTION)
        code, remark = broker.sessions.heartbeat(RecordingSession(), GROUP)
        assert code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
        assert "autoCreateSubscriptionGroup is false" in remark
        broker.reconfigure(broker_options(), RETENTION)
        assert broker.sessions.heartbeat(RecordingSession(), GROUP) == (ResponseCode.SUCCESS, "")


async def test_another_size_of_messages_is_taken() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        broker.reconfigure(replace(broker_options(), body_size_max=3), RETENTION)
        assert await codes(broker, "t", b"123") == [ResponseCode.SUCCESS]
        assert await codes(broker, "t", b"1234") == [ResponseCode.MESSAGE_ILLEGAL]


async def test_checks_follow_other_times_after_the_present_pause() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        session = RecordingSession()
        broker.sessions.heartbeat(session, client("a", producer="shop"))
        await produce(broker, half("t", b"x", "tx"))
        checks = TransactionOptions(check_interval_ms=1_000, immunity_ms=90_000, check_times_max=1)
        broker.reconfigure(replace(broker_options(), transactions=checks), RETENTION)
        await clock.advance(60)
        assert session.checks == []  # old enough by the old options, not by the new ones
        await clock.advance(31)
        assert len(session.checks) >= 1
        assert broker.transaction_table.check_times_max == 1


async def test_files_go_at_another_age() -> None:
    clock = SimClock()
    async with running_broker(SimDisk(), clock) as broker:
        for _ in range(3):
            assert await codes(broker, "t", bytes(LOG_FILE_BYTES // 2)) == [ResponseCode.SUCCESS]
        await clock.advance(2 * 3_600)
        assert broker.retention.files_deleted == 0
        broker.reconfigure(broker_options(), replace(RETENTION, reserved_hours=1, delete_hours=frozenset(range(24))))
        await clock.advance(60)
        assert broker.retention.files_deleted > 0


async def test_writes_are_rejected_by_other_shares_of_the_disk() -> None:
    disk, clock = SimDisk(), SimClock()
    async with running_broker(disk, clock) as broker:
        broker.reconfigure(broker_options(), replace(RETENTION, normal_share=0, forced_share=0, reject_share=0))
        await broker.retention.round()
        assert await codes(broker, "t") == [ResponseCode.SYSTEM_ERROR]
        broker.reconfigure(broker_options(), RETENTION)
        await broker.retention.round()
        assert await codes(broker, "t") == [ResponseCode.SUCCESS]


async def test_identity_and_delay_levels_stay() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        other = BrokerOptions(
            BrokerIdentity("other", "other", 0, "10.0.0.1:1"), broker_options("1s").delay_levels, body_size_max=5
        )
        broker.reconfigure(other, RETENTION)
        usual = broker_options()
        assert broker.options == replace(other, identity=usual.identity, delay_levels=usual.delay_levels)
