"""Consumers of a broker with a replica: which of them serves the queues, and that a change loses nothing (mechanism
H4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient import (
    BrokerUnreachableError,
    ClientConfig,
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    Message,
    MessageExt,
    MessageQueue,
    Producer,
    PullConsumer,
    PullStatus,
    PushConsumer,
)
from mqclient.testing import FakeBroker, FakeCluster, RecordingListener, consumer_of, made_consumer
from mqclient.transport import methods
from osenv.sim_clock import settle

QUEUE = MessageQueue("orders", "broker-a", 0)
KEY = ("closers", "orders", 0)


def pair() -> tuple[FakeCluster, FakeBroker, FakeBroker]:
    """A master with a replica."""
    cluster, (master,) = FakeCluster.of("broker-a", queue_count=1)
    return cluster, master, cluster.add_replica(master)


def put(broker: FakeBroker, *bodies: bytes) -> None:
    for body in bodies:
        broker.put("orders", 0, body)


def go(broker: FakeBroker) -> None:
    """The broker is gone."""
    broker.down = True
    broker.break_streams()


class TestPushConsumer:
    async def test_the_master_serves_without_another_suggestion(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0")
        replica.copy_from(master)
        listener = RecordingListener()
        async with consumer_of(cluster, listener):
            await listener.has(1)
        assert replica.polled_offsets == []

    @pytest.mark.mechanism("H3")
    async def test_polls_go_to_the_replica_that_the_master_suggests_and_back_when_the_replica_does(self) -> None:
        cluster, master, replica = pair()
        put(master, *(b"%d" % number for number in range(100)))
        replica.copy_from(master)
        master.suggest_broker_id = replica.suggest_broker_id = 1
        listener = RecordingListener()
        async with consumer_of(cluster, listener, pull_batch_size=10):
            await listener.has(100)
            await settle()
            assert (master.polled_offsets.count(0), min(replica.polled_offsets)) == (1, 10)
            assert max(replica.polled_offsets) == 100
            replica.suggest_broker_id = 0
            put(master, b"100", b"101")
            replica.copy_from(master)
            await listener.has(102)
            await settle()
            assert max(master.polled_offsets) == 102
        assert listener.bodies == [b"%d" % number for number in range(102)]

    async def test_a_suggested_replica_that_cannot_be_reached_is_passed_over(self) -> None:
        cluster, master, replica = pair()
        put(master, *(b"%d" % number for number in range(20)))
        master.suggest_broker_id = 1
        go(replica)
        listener = RecordingListener()
        async with consumer_of(cluster, listener, pull_batch_size=10):
            await listener.has(20)
        assert cluster.clock.monotonic() == 0.0

    @pytest.mark.mechanism("H4")
    @pytest.mark.parametrize("known_to_name_servers", [True, False])
    async def test_without_a_master_the_replica_serves_and_with_it_the_master_again(
        self, known_to_name_servers: bool
    ) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        replica.copy_from(master)
        listener = RecordingListener()
        async with consumer_of(cluster, listener, pull_batch_size=1):
            await listener.has(2)
            (name_server,) = cluster.name_servers.values()
            name_server.knows_nothing = not known_to_name_servers
            put(master, b"2")
            replica.copy_from(master)
            go(master)
            await settle()
            replica.put("orders", 0, b"3")  # what the master wrote last reaches the consumer by the replica
            await listener.has(4)
            assert replica.polled_offsets[-1] >= 3
            master.copy_from(replica)
            master.down = name_server.knows_nothing = False
            await cluster.clock.advance(5.0)
            put(master, b"4")
            await listener.has(5)
            assert max(master.polled_offsets) >= 4
        assert listener.bodies == [b"%d" % number for number in range(5)]

    async def test_a_switch_moves_the_polls_and_nothing_is_missing_or_twice(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        listener = RecordingListener()
        async with consumer_of(cluster, listener):
            await listener.has(2)
            cluster.switch(master, replica)
            put(replica, b"2")
            await cluster.clock.advance(3.0)
            await listener.has(3)
            assert replica.progress.reports[-1].queues[0].offset == 3
            assert replica.offsets[KEY] == 3
        assert listener.bodies == [b"0", b"1", b"2"]

    async def test_polls_that_the_replica_holds_end_when_the_master_is_back(self) -> None:
        cluster, master, replica = pair()
        listener = RecordingListener()
        async with consumer_of(cluster, listener):
            go(master)
            await settle()
            assert replica.polled_offsets
            master.down = False
            await cluster.clock.advance(3.0)
            cancelled = len(replica.cancelled_polls)
            put(master, b"0")  # the replica has not got it
            await listener.has(1)
        assert cancelled >= 1

    async def test_an_offset_that_a_replica_calls_illegal_is_no_reason_to_go_elsewhere(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1", b"2")  # the replica has none of them
        replica.judges_offsets = True
        listener = RecordingListener()
        async with consumer_of(cluster, listener):
            await listener.has(3)
            go(master)
            await cluster.clock.advance(10.0)
            assert set(replica.polled_offsets) == {3}
            assert len(replica.polled_offsets) <= 2 * 10  # once a second and queue, that of the retry topic included
            master.put("orders", 0, b"3")
            replica.copy_from(master)
            await cluster.clock.advance(1.0)
            await listener.has(4)
        assert listener.bodies == [b"0", b"1", b"2", b"3"]
        assert replica.offsets[KEY] == 4

    async def test_a_replica_that_is_behind_makes_its_consumer_wait_and_not_go_back(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        listener = RecordingListener()
        async with consumer_of(cluster, listener):
            await listener.has(2)
            go(master)
            await cluster.clock.advance(5.0)
            replica.copy_from(master)
            replica.put("orders", 0, b"2")
            await cluster.clock.advance(1.0)
            await listener.has(3)
        assert listener.bodies == [b"0", b"1", b"2"]

    async def test_a_replica_that_does_not_know_the_topic_yet_takes_no_queue_away(self) -> None:
        cluster, master, replica = pair()
        del replica.topics["orders"]
        listener = RecordingListener()
        async with consumer_of(cluster, listener) as consumer:
            go(master)
            await cluster.clock.advance(5.0)
            assert QUEUE in consumer.queues
            master.put("orders", 0, b"0")
            replica.copy_from(master)
            await cluster.clock.advance(3.0)
            await listener.has(1)

    async def test_offsets_are_committed_to_the_replica_while_the_master_is_away_and_to_the_master_again(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0")
        listener = RecordingListener()
        async with consumer_of(cluster, listener):
            await listener.has(1)
            replica.copy_from(master)
            go(master)
            replica.put("orders", 0, b"1")
            await listener.has(2)
            await cluster.clock.advance(15.0)
            assert [one.offset for one in replica.commits[-1].queues if one.topic == "orders"] == [2]
            master.copy_from(replica)
            master.offsets[KEY] = 0  # it has not heard yet what the replica was told
            master.down = False
            await cluster.clock.advance(10.0)
            assert master.offsets[KEY] == 2

    async def test_what_was_sent_back_is_reported_with_the_log_that_its_retry_needs(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0")
        replica.copy_from(master)
        async with consumer_of(cluster, RecordingListener(ConsumeStatus.RECONSUME_LATER)):
            await cluster.clock.advance(0.01)
            needed = master.log_end
            assert needed > replica.log_end
            assert [one.version for one in master.send_backs] == [0]
            go(master)
            await cluster.clock.advance(15.0)
        told = [one for commit in replica.commits for one in commit.queues if one.topic == "orders"]
        assert {(one.offset, one.log_end) for one in told} == {(1, needed)}

    async def test_the_next_owner_of_a_queue_reports_it_with_the_log_of_the_broker_that_it_asked(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        master.offsets[KEY] = 1
        needed = master.log_end
        listener = RecordingListener()
        async with consumer_of(cluster, listener), PullConsumer("closers", cluster.url) as puller:
            await listener.has(1)
            await puller.commit(QUEUE, 1)
            go(master)
            await cluster.clock.advance(15.0)
            await puller.commit(QUEUE, 1)
        told = [
            (one.offset, one.log_end) for commit in replica.commits for one in commit.queues if one.topic == "orders"
        ]
        assert set(told) == {(2, needed), (1, needed)}

    async def test_a_replica_with_an_older_version_of_an_offset_moves_no_consumer_back(self) -> None:
        cluster, master, replica = pair()
        put(master, *(b"%d" % number for number in range(5)))
        replica.copy_from(master)
        listener = RecordingListener()
        master.progress.set(KEY, 2)  # the replica has not heard of that
        async with consumer_of(cluster, listener):
            await listener.has(3)
            go(master)
            replica.offsets[KEY] = 0
            await cluster.clock.advance(20.0)
            assert replica.commits
        assert listener.bodies == [b"2", b"3", b"4"]

    async def test_a_reset_that_a_replica_tells_late_changes_nothing_and_one_that_is_newer_does(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        replica.copy_from(master)
        master.progress.versions[KEY] = 5
        listener = RecordingListener()
        async with consumer_of(cluster, listener) as consumer:
            await listener.has(2)
            for version in (4, 6):
                one = broker_pb.QueueProgress(topic="orders", queue_id=0, offset=0, version=version)
                reset = broker_pb.ResetConsumerOffset(group=consumer.group, queues=[one])
                replica.sessions.tell(broker_pb.SessionResponse(reset_consumer_offset=reset))
                await settle()
                assert len(listener.bodies) == (2 if version == 4 else 4)

    async def test_a_group_can_begin_while_only_the_replica_lives(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0")
        replica.copy_from(master)
        go(master)
        listener = RecordingListener()
        async with consumer_of(cluster, listener) as consumer:
            await listener.has(1)
            assert QUEUE in consumer.queues
        assert cluster.clock.monotonic() == 0.0


class TestSessions:
    async def test_a_consumer_is_known_to_replicas_too_and_a_producer_to_masters_only(self) -> None:
        cluster, master, replica = pair()
        async with Producer("shop", cluster.url) as producer, consumer_of(cluster, RecordingListener()):
            await settle()
            assert producer is not None
            assert (master.producer_groups(), replica.producer_groups()) == (["shop"], [])
            assert len(master.members("closers")) == len(replica.members("closers")) == 1
            cluster.switch(master, replica)
            await cluster.clock.advance(1.0)
            assert (master.producer_groups(), replica.producer_groups()) == ([], ["shop"])
            assert len(master.members("closers")) == len(replica.members("closers")) == 1

    async def test_a_producer_alone_has_no_session_with_a_replica(self) -> None:
        cluster, master, replica = pair()
        async with Producer("shop", cluster.url) as producer:
            await producer.send(Message("orders", b"x"))
            await settle()
            assert (len(master.sessions.heartbeats), replica.sessions.heartbeats) == (1, [])

    async def test_a_start_does_not_wait_for_a_replica_that_does_not_answer(self) -> None:
        cluster, _, replica = pair()
        replica.silent = True
        async with consumer_of(cluster, RecordingListener()):
            assert cluster.clock.monotonic() == 0.0

    async def test_the_connection_to_a_replica_that_has_left_is_closed(self) -> None:
        cluster, _, replica = pair()
        async with consumer_of(cluster, RecordingListener()):
            await settle()
            del cluster.brokers[replica.address]
            await cluster.clock.advance(62.0)
            assert all(channel.closed for channel in cluster.channels if channel.address == replica.address)


class TestOrderly:
    async def test_it_pauses_without_a_master_and_goes_on_with_the_next_one(self) -> None:
        cluster, master, replica = pair()
        bodies: list[bytes] = []

        async def listen(messages: list[MessageExt]) -> ConsumeOrderlyStatus:
            bodies.extend(message.body for message in messages)
            return ConsumeOrderlyStatus.SUCCESS

        put(master, b"0")
        async with orderly_member(cluster, listen):
            await cluster.clock.advance(1.0)
            replica.copy_from(master)
            go(master)
            await cluster.clock.advance(40.0)  # the lock has run out
            replica.put("orders", 0, b"1")
            await cluster.clock.advance(5.0)
            assert bodies == [b"0"]
            cluster.promote(replica)
            await cluster.clock.advance(25.0)
            assert bodies == [b"0", b"1"]
            assert replica.locks.holder("closers", "orders", 0) is not None

    async def test_a_new_master_is_asked_for_the_locks_at_once(self) -> None:
        cluster, master, replica = pair()

        async def listen(_: list[MessageExt]) -> ConsumeOrderlyStatus:
            return ConsumeOrderlyStatus.SUCCESS

        async with orderly_member(cluster, listen):
            await settle()
            cluster.switch(master, replica)
            await cluster.clock.advance(1.0)
            assert replica.locks.holder("closers", "orders", 0) is not None


def orderly_member(cluster: FakeCluster, listen: Any) -> PushConsumer:
    member = made_consumer(
        "closers",
        cluster.url,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        client_config=ClientConfig(instance_name="m1"),
    )
    member.subscribe("orders")
    member.register_message_listener_orderly(listen)
    return member


class TestPullConsumer:
    @pytest.mark.parametrize("block_s", [0.0, 5.0])
    async def test_it_reads_from_the_replica_while_the_master_is_away(self, block_s: float) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        replica.copy_from(master)
        async with PullConsumer("closers", cluster.url) as consumer:
            first = await consumer.pull(QUEUE, 0, max_messages=1)
            go(master)
            second = await consumer.pull(QUEUE, first.next_begin_offset, block_s=block_s)
        assert [message.body for message in (*first.messages, *second.messages)] == [b"0", b"1"]

    async def test_it_goes_where_the_last_answer_has_suggested(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1", b"2")
        replica.copy_from(master)
        master.suggest_broker_id = 1
        async with PullConsumer("closers", cluster.url) as consumer:
            for offset in range(3):
                await consumer.pull(QUEUE, offset, max_messages=1)
        pulls = [broker.unary_paths.count(methods.PULL.path) for broker in (master, replica)]
        assert pulls == [2, 1]  # the replica suggests the master again

    async def test_an_offset_that_a_replica_calls_illegal_is_asked_of_the_master(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        replica.judges_offsets = True
        master.suggest_broker_id = replica.suggest_broker_id = 1
        async with PullConsumer("closers", cluster.url) as consumer:
            await consumer.pull(QUEUE, 0, max_messages=1)
            found = await consumer.pull(QUEUE, 1, max_messages=1)
            master.suggest_broker_id = 1
            beyond = await consumer.pull(QUEUE, 7)
            go(master)
            unknown = await consumer.pull(QUEUE, 7)
        assert [message.body for message in found.messages] == [b"1"]
        assert (beyond.status, beyond.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 2)
        assert (unknown.status, unknown.next_begin_offset) == (PullStatus.NO_NEW_MSG, 7)

    async def test_assigned_queues_wait_at_a_replica_that_is_behind_without_asking_in_a_tight_circle(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        async with PullConsumer("closers", cluster.url) as consumer:
            consumer.assign([QUEUE])
            consumer.seek(QUEUE, 0)
            assert len(await consumer.poll()) == 2
            go(master)
            polling = asyncio.create_task(consumer.poll(30.0))
            await cluster.clock.advance(10.0)
            assert len(replica.polled_offsets) <= 11
            replica.copy_from(master)
            replica.put("orders", 0, b"2")
            await cluster.clock.advance(1.5)
            assert [message.body for message in await polling] == [b"2"]

    async def test_it_commits_to_the_replica_and_resets_at_the_master_only(self) -> None:
        cluster, master, replica = pair()
        put(master, b"0", b"1")
        replica.copy_from(master)
        async with PullConsumer("closers", cluster.url) as consumer:
            await consumer.commit(QUEUE, 1)
            replica.copy_from(master)
            go(master)
            await consumer.commit(QUEUE, 2)
            assert await consumer.committed(QUEUE) == 2
            assert (await consumer.min_offset(QUEUE), await consumer.max_offset(QUEUE)) == (0, 2)
            with pytest.raises(BrokerUnreachableError):
                await consumer.reset(QUEUE, 0)
        assert replica.offsets[KEY] == 2
