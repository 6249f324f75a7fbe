"""Requests to a replica: it serves reads, and rejects what only its master may do.

Mechanisms H3, H4.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from mq_broker.core.consumer_offsets import Progress, version_of
from mq_broker.core.limits import RejectedError
from mq_broker.core.members import LockedQueue
from mq_broker.core.pulling import PullQuery, PullResult, ReplicaReads
from mq_broker.core.replica_state import ReplicationOptions
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.topics import TopicConfig
from mq_broker.core.transactions import TransactionState
from mq_broker.processor.broker import Broker
from mq_broker.processor.consuming import ConsumeFromWhere
from mq_broker.processor.topic_administration import code_of
from mq_broker.store.errors import NotMasterError, StoreFencedError, StoreFullError
from mq_broker.testing import (
    RecordingSession,
    client,
    half,
    incoming,
    keyed,
    produce,
    read_all,
    running_broker,
)
from mqproto.codes import PullStatus, ResponseCode
from osenv import SimClock, SimDisk
from osenv.process import machine_memory_bytes

NOT_LEADER = ResponseCode.NOT_LEADER_FOR_QUEUE


@asynccontextmanager
async def a_replica(clock: SimClock | None = None) -> AsyncIterator[Broker]:
    """A broker with 10 messages in queue 0 of `t`, a half message and a waiting one, that has become a replica."""
    async with running_broker(SimDisk(), clock or SimClock()) as broker:
        await produce(broker, incoming("t", [b"%d" % number for number in range(10)]))
        await produce(broker, keyed("t", key="k", delay_level=5), half("t", b"half", "tx"))
        broker.sessions.heartbeat(RecordingSession(), client("c", "g"))
        broker.store.follows = True
        yield broker


def state_of(broker: Broker) -> tuple[int, ...]:
    states = (broker.topics, broker.groups, broker.consumer_offsets, broker.queue_locks, broker.delay_progress)
    return (broker.store.log_end, *(state.data_version for state in states))


class TestRejected:
    @pytest.mark.parametrize(
        "request_",
        [
            pytest.param(lambda b: b.topic_administration.update(TopicConfig("t", 9, 9)), id="create a topic"),
            pytest.param(lambda b: b.topic_administration.delete("t"), id="delete a topic"),
            pytest.param(lambda b: b.group_administration.update(SubscriptionGroup("g", 3)), id="change a group"),
            pytest.param(lambda b: b.group_administration.delete("g", clean_offsets=True), id="delete a group"),
            pytest.param(lambda b: b.consume_progress.reset("g", "t", 0, force=True), id="reset by time"),
            pytest.param(lambda b: b.consume_progress.reset_to("g", "t", [(0, 1)]), id="reset to offsets"),
            pytest.param(lambda b: b.offsets.set("g", [("t", 0, 1)]), id="set offsets"),
            pytest.param(lambda b: b.queue_locking.lock("g", "c", [LockedQueue("t", 0)]), id="lock"),
            pytest.param(lambda b: b.recalling.recall("t", "k"), id="recall"),
            pytest.param(
                lambda b: b.transaction_administration.decide("tx", TransactionState.COMMIT_MESSAGE), id="decide"
            ),
            pytest.param(lambda b: b.transaction_administration.undecided(None, "", 0), id="list transactions"),
            pytest.param(lambda b: b.transaction_administration.get("tx"), id="look at a transaction"),
        ],
    )
    async def test_what_only_the_master_may_do_is_rejected_and_changes_nothing(
        self, request_: Callable[[Broker], Awaitable[object]]
    ) -> None:
        async with a_replica() as broker:
            before = state_of(broker)
            with pytest.raises(RejectedError, match="brokerId 0") as rejected:
                await request_(broker)
            assert rejected.value.code is NOT_LEADER
            assert state_of(broker) == before

    async def test_the_end_of_a_transaction_is_rejected(self) -> None:
        async with a_replica() as broker:
            before = state_of(broker)
            ended = await broker.transactions.end("shop", "tx", TransactionState.COMMIT_MESSAGE, from_check=False)
            assert (ended.code, "brokerId 0" in ended.remark) == (NOT_LEADER, True)
            assert state_of(broker) == before

    async def test_what_comes_back_is_rejected_and_makes_no_retry_topic(self) -> None:
        async with a_replica() as broker:
            before = state_of(broker)
            code, remark, _ = await broker.send_back.send_back("new", 0, delay_level=0, max_reconsume_times=0)
            assert (code, "brokerId 0" in remark) == (NOT_LEADER, True)
            assert state_of(broker) == before

    async def test_unlocking_is_rejected(self) -> None:
        async with a_replica() as broker:
            with pytest.raises(RejectedError, match="brokerId 0"):
                broker.queue_locking.unlock("g", "c", [LockedQueue("t", 0)])

    async def test_a_reset_that_was_asked_for_before_the_master_stepped_down_is_rejected(self) -> None:
        """Searching by time takes a moment, in which the role may change."""
        async with a_replica() as broker:
            broker.store.follows = False
            search = broker.querying.offset_by_time

            async def steps_down(topic: str, queue_id: int, timestamp_ms: int) -> int:
                broker.store.follows = True
                return await search(topic, queue_id, timestamp_ms)

            broker.querying.offset_by_time = steps_down  # type: ignore[method-assign]
            with pytest.raises(RejectedError) as rejected:
                await broker.consume_progress.reset("g", "t", 0, force=True)
            assert (rejected.value.code, broker.consumer_offsets.places()) == (NOT_LEADER, [])

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (NotMasterError("no"), NOT_LEADER),
            (StoreFencedError("no"), ResponseCode.SERVICE_NOT_AVAILABLE),
            (StoreFullError("no"), ResponseCode.SYSTEM_ERROR),
        ],
    )
    def test_what_the_store_rejects_has_a_code(self, error: Exception, code: ResponseCode) -> None:
        assert code_of(error) is code  # type: ignore[arg-type]


class TestLocks:
    async def test_who_becomes_a_master_grants_no_lock_before_those_of_the_old_master_are_over(self) -> None:
        """The old master may have granted a lock that its holder goes by for 30 s more (mechanism O2)."""
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock) as replica:
            replica.store.follows = True
            replica.queue_locking.begin(lost=False, term=1)
        async with running_broker(disk, clock) as master:
            await master.topic_administration.update(TopicConfig("t", 1, 1))
            master.sessions.heartbeat(RecordingSession(), client("c", "g"))
            queue = LockedQueue("t", 0)
            await clock.advance(59)
            assert await master.queue_locking.lock("g", "c", [queue]) == []
            await clock.advance(1)
            assert await master.queue_locking.lock("g", "c", [queue]) == [queue]


class TestServed:
    async def test_what_is_there_can_be_read_searched_and_counted(self) -> None:
        async with a_replica() as broker:
            assert [bytes(record.body) for record in await read_all(broker, "t")] == [b"%d" % n for n in range(10)]
            assert await broker.querying.offset_by_time("t", 0, 0) == 0
            stats = await broker.topic_administration.stats("t")
            assert [(one.min_offset, one.max_offset) for one in stats] == [(0, 10), (0, 0), (0, 0), (0, 0)]
            assert [one.client_id for one in broker.client_commands.connections("g")] == ["c"]
            assert (await broker.querying.by_log_offset(0))[:4] != b""

    async def test_a_group_begins_and_reports_at_a_replica(self) -> None:
        async with a_replica() as broker:
            begun = await broker.offsets.begin("g", "t", 0, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
            assert begun == Progress(0)
            assert broker.offsets.commit("g", [("t", 0, Progress(4, ((6, 8),)))]) == ""
            assert broker.offsets.query("g", "t", 0) == Progress(4, ((6, 8),))

    async def test_of_what_a_replica_has_not_got_yet_nothing_is_finished_and_the_rest_of_the_report_counts(
        self,
    ) -> None:
        async with a_replica() as broker:
            report = [("t", 0, Progress(4, ((6, 8), (9, 14)))), ("t", 1, Progress(3))]
            assert broker.offsets.commit("g", report) == ""
            assert broker.offsets.query("g", "t", 0) == Progress(4, ((6, 8), (9, 10)))
            assert broker.offsets.query("g", "t", 1) == Progress(0)

    async def test_who_reports_messages_that_were_lost_hears_that_everything_was_asked_anew(self) -> None:
        """They lie beyond the end of a queue that is shorter now; that must not end in a rejection."""
        async with a_replica() as broker:
            broker.store.follows = False
            broker.offsets.commit("g", [("t", 0, Progress(4))])
            broker.consumer_offsets.begin_term(2, 2)
            assert "left out" in broker.offsets.commit("g", [("t", 0, Progress(12))])
            known = broker.offsets.query("g", "t", 0)
            assert (known is not None and known.offset) == 4


def query(offset: int, *, group: str = "g", expression: str = "*", messages: int = 1) -> PullQuery:
    return PullQuery(group, "t", 0, offset, messages, 1 << 20, expression)


async def pull(broker: Broker, offset: int, *, expression: str = "*", messages: int = 1) -> PullResult:
    asked = query(offset, expression=expression, messages=messages)
    return broker.pulling.pull_hot(asked) or await broker.pulling.pull(asked)


class TestPulling:
    async def test_who_is_ahead_of_a_replica_waits_for_it_and_keeps_its_place(self) -> None:
        async with a_replica() as broker:
            result = await pull(broker, 12)
            assert (result.status, result.next_begin_offset, result.suggest_broker_id) == (PullStatus.NO_NEW_MSG, 12, 0)
            broker.store.follows = False
            assert (await pull(broker, 12)).status is PullStatus.OFFSET_ILLEGAL

    async def test_who_is_ahead_is_answered_after_its_time_however_much_comes_meanwhile(self) -> None:
        clock = SimClock()
        async with a_replica(clock) as broker:
            answers: list[PullResult] = []
            broker.long_polling.poll(query(50), 10_000, answers.append)
            for _ in range(3):
                await clock.advance(3)
                broker.store.follows = False
                outcomes = broker.producing.put([incoming("t", [b"x"])])
                broker.store.follows = True
                await broker.producing.acknowledge(outcomes, broker.store.log_end)
            assert answers == []
            await clock.advance(1)
            assert [answer.status for answer in answers] == [PullStatus.NO_NEW_MSG]

    @pytest.mark.parametrize(
        ("asked", "by_master", "by_replica"),
        [
            pytest.param(None, PullStatus.FOUND, PullStatus.FOUND, id="without a version"),
            pytest.param(version_of(2, 1), PullStatus.FOUND, PullStatus.FOUND, id="the same"),
            pytest.param(version_of(1, 1), PullStatus.OFFSET_ILLEGAL, PullStatus.OFFSET_ILLEGAL, id="before a loss"),
            pytest.param(version_of(2, 0), PullStatus.OFFSET_ILLEGAL, PullStatus.OFFSET_ILLEGAL, id="before a reset"),
            pytest.param(version_of(3, 1), PullStatus.OFFSET_ILLEGAL, PullStatus.NO_NEW_MSG, id="after a loss"),
            pytest.param(version_of(2, 2), PullStatus.OFFSET_ILLEGAL, PullStatus.FOUND, id="after a reset"),
        ],
    )
    async def test_messages_go_to_the_same_version_of_progress_and_others_hear_where_to_go_on(
        self, asked: int | None, by_master: PullStatus, by_replica: PullStatus
    ) -> None:
        """The log of a replica that has not heard of a loss may hold what is lost."""
        known = Progress(4, ((6, 8),), version_of(2, 1))
        async with a_replica() as broker:
            broker.consumer_offsets.put("g", "t", 0, known)
            for follows, status in ((True, by_replica), (False, by_master)):
                broker.store.follows = follows
                result = broker.pulling.pull_hot(replace(query(2), version=asked))
                assert result is not None
                assert (result.status, result.count) == (status, int(status is PullStatus.FOUND))
                assert result.progress == (known if status is PullStatus.OFFSET_ILLEGAL else None)

    async def test_a_replica_that_is_not_to_be_read_sends_to_the_master(self) -> None:
        async with a_replica() as broker:
            broker.pulling.reads = replace(broker.pulling.reads, enabled=False)
            result = await pull(broker, 0)
            assert (result.code, result.suggest_broker_id) == (ResponseCode.SYSTEM_BUSY, 0)
            assert "slaveReadEnable=false" in result.remark
            broker.store.follows = False
            assert (await pull(broker, 0)).status is PullStatus.FOUND

    @pytest.mark.mechanism("H3")
    @pytest.mark.parametrize(
        ("near_bytes", "follows", "suggested"), [(0, False, 3), (1 << 20, False, 2), (0, True, 3), (1 << 20, True, 2)]
    )
    async def test_who_is_far_behind_reads_where_its_group_says(
        self, near_bytes: int, suggested: int, *, follows: bool
    ) -> None:
        async with a_replica() as broker:
            broker.groups.update(SubscriptionGroup("g", broker_id=2, which_broker_when_consume_slowly=3))
            broker.store.follows = follows
            broker.pulling.reads = ReplicaReads(enabled=True, near_bytes=near_bytes, is_replica_there=lambda: True)
            assert (await pull(broker, 0)).suggest_broker_id == suggested
            nothing_matched = await pull(broker, 0, expression="nothing")
            assert (nothing_matched.status, nothing_matched.suggest_broker_id) == (PullStatus.NO_MATCHED_MSG, suggested)

    async def test_how_far_behind_is_counted_from_the_last_message_that_was_looked_at(self) -> None:
        async with a_replica() as broker:
            queue = broker.store.queue("t", 0)
            assert queue is not None
            behind = broker.store.log_end - queue.entry(4)[0]
            broker.pulling.reads = ReplicaReads(enabled=True, near_bytes=behind, is_replica_there=lambda: True)
            assert [(await pull(broker, 0, messages=count)).suggest_broker_id for count in (4, 5)] == [1, 0]

    @pytest.mark.parametrize("reads", [{"enabled": False}, {"is_replica_there": lambda: False}])
    async def test_without_a_replica_to_read_from_all_readers_stay_with_the_master(
        self, reads: dict[str, object]
    ) -> None:
        async with a_replica() as broker:
            broker.store.follows = False
            there = ReplicaReads(enabled=True, near_bytes=0, is_replica_there=lambda: True)
            broker.pulling.reads = replace(there, **reads)  # type: ignore[arg-type]
            broker.groups.update(SubscriptionGroup("g", broker_id=2))
            assert (await pull(broker, 0)).suggest_broker_id == 0


class TestNear:
    """Mechanism H3: 40 % of the machine's memory."""

    def test_is_a_share_of_the_memory(self) -> None:
        reads = ReplicaReads.of(ReplicationOptions(), 1_000, lambda: True)
        assert [reads.suggestion(SubscriptionGroup("g"), behind) for behind in (400, 401)] == [0, 1]

    def test_where_the_memory_is_unknown_no_reader_is_sent_away(self) -> None:
        assert ReplicaReads.of(ReplicationOptions(), 0, lambda: True).suggestion(SubscriptionGroup("g"), 1 << 60) == 0

    def test_the_machine_has_memory(self) -> None:
        assert machine_memory_bytes() > 1 << 26


class TestGroupSettings:
    @pytest.mark.parametrize("wrong", [{"broker_id": -1}, {"which_broker_when_consume_slowly": 1 << 31}])
    async def test_ids_of_brokers_that_cannot_be_are_rejected(self, wrong: dict[str, int]) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            with pytest.raises(RejectedError, match=r"broker id .*; allowed are 0"):
                await broker.group_administration.update(SubscriptionGroup("g", **wrong))  # type: ignore[arg-type]

    async def test_they_are_kept(self) -> None:
        disk, group = SimDisk(), SubscriptionGroup("g", broker_id=2, which_broker_when_consume_slowly=3)
        async with running_broker(disk, SimClock()) as broker:
            await broker.group_administration.update(group)
            named = broker.groups.to_json()["subscriptionGroupTable"]["g"]
            assert (named["brokerId"], named["whichBrokerWhenConsumeSlowly"]) == (2, 3), "RocketMQ's names"
        async with running_broker(disk, SimClock()) as broker:
            assert broker.groups.get("g") == group
