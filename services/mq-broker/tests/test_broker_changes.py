"""Operators' changes are records of the log: answered when they are as durable as a message, and made again from it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import RejectedError
from mq_broker.core.rewrite import single_record_batch
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker
from mq_broker.store.errors import StoreWriteError
from mq_broker.testing import (
    STORE_ROOT,
    RecordingSession,
    client,
    incoming,
    produce,
    producer_record,
    read_all,
    running_broker,
    store_options,
)
from mq_broker.testing_replication import Member, pair, promoted, result_of, send, until
from mq_broker.tools.dump_log import DumpOptions, dump
from mqproto.codes import ResponseCode
from mqproto.names import CHANGES_TOPIC, SYSTEM_TOPICS, retry_topic
from osenv import SimClock, SimDisk


@dataclass(frozen=True)
class Case:
    """A change, and what it has changed."""

    make: Callable[[Broker], Coroutine[Any, Any, object]]
    look: Callable[[Broker], object]
    repeated: ResponseCode = ResponseCode.SUCCESS  # of the same change, asked for again


CASES = {
    "a topic is deleted": Case(
        lambda broker: broker.topic_administration.delete("t"),
        lambda broker: (broker.topics.get("t"), broker.store.queue_bounds("t", 0), broker.offsets.query("g", "t", 0)),
        ResponseCode.TOPIC_NOT_EXIST,
    ),
    "queues are added": Case(
        lambda broker: broker.topic_administration.update(TopicConfig("t", 9, 8)),
        lambda broker: broker.topics.get("t"),
    ),
    "a topic is made": Case(
        lambda broker: broker.topic_administration.update(TopicConfig("new", 3, 3)),
        lambda broker: broker.topics.get("new"),
    ),
    "a group is changed": Case(
        lambda broker: broker.group_administration.update(SubscriptionGroup("g", 3, retry_queue_count=2)),
        lambda broker: (broker.groups.get("g"), broker.topics.get(retry_topic("g"))),
    ),
    "a group is deleted": Case(
        lambda broker: broker.group_administration.delete("g", clean_offsets=True),
        lambda broker: (broker.groups.get("g"), broker.offsets.query("g", "t", 0), broker.topics.get(retry_topic("g"))),
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    ),
    "offsets are reset": Case(
        lambda broker: broker.consume_progress.reset("g", "t", 0, force=True),
        lambda broker: (broker.offsets.query("g", "t", 0) or Progress(0)).offset,
    ),
    "offsets are set": Case(
        lambda broker: broker.offsets.set("g", [("t", 0, 1)]),
        lambda broker: (broker.offsets.query("g", "t", 0) or Progress(0)).offset,
    ),
}
cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


async def prepare(clock: SimClock, master: Member) -> None:
    """Messages of `t`, of which `g` has consumed two; one came back to be tried again."""
    await send(clock, master, b"0", b"1", b"2")
    session, broker = RecordingSession(), master.at_work
    broker.sessions.heartbeat(session, client("c", "g"))
    broker.sessions.ended(session, "c")
    await result_of(clock, produce(broker, incoming(retry_topic("g"), [b"again"])))
    broker.offsets.commit("g", [("t", 0, Progress(2))])
    await clock.advance(1)


def make_full(broker: Broker) -> None:
    """The disk takes nothing more."""

    def reject(*_: object, **__: object) -> None:
        raise StoreWriteError("no space left on device")

    broker.store.put = reject  # type: ignore[method-assign, assignment]


class TestAPair:
    @cases
    async def test_what_was_answered_survives_the_loss_of_the_master(self, case: Case) -> None:
        clock = SimClock()
        async with pair(clock, min_in_sync=2) as (network, master, replica):
            await prepare(clock, master)
            before = case.look(replica.at_work)
            await result_of(clock, case.make(master.at_work))
            answered = case.look(master.at_work)
            assert case.look(await promoted(clock, network, master, replica)) == answered != before

    @cases
    async def test_what_the_replica_does_not_have_is_rejected_and_can_be_repeated(self, case: Case) -> None:
        clock = SimClock()
        async with pair(clock, min_in_sync=2) as (network, master, replica):
            await prepare(clock, master)
            network.cut(replica)
            with pytest.raises(RejectedError, match="may or may not survive; repeat the call") as rejected:
                await result_of(clock, case.make(master.at_work))
            assert rejected.value.code is ResponseCode.FLUSH_SLAVE_TIMEOUT
            made, end = case.look(master.at_work), master.at_work.store.log_end
            network.heal()
            await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
            await clock.advance(1)
            if case.repeated is ResponseCode.SUCCESS:
                await result_of(clock, case.make(master.at_work))
            else:
                with pytest.raises(RejectedError) as repeated:
                    await result_of(clock, case.make(master.at_work))
                assert repeated.value.code is case.repeated
            assert case.look(master.at_work) == made
            assert master.at_work.store.log_end == end or made in (0, 1), "only a reset is recorded again"
            assert case.look(await promoted(clock, network, master, replica)) == made

    @cases
    async def test_with_too_few_replicas_nothing_changes(self, case: Case) -> None:
        clock = SimClock()
        async with pair(clock, min_in_sync=2) as (network, master, replica):
            await prepare(clock, master)
            before = case.look(master.at_work)
            network.cut(replica)
            await until(clock, lambda: bool(master.at_work.store.too_few_replicas))
            with pytest.raises(RejectedError, match="1 of 2 replicas are in sync"):
                await result_of(clock, case.make(master.at_work))
            assert case.look(master.at_work) == before

    @cases
    async def test_a_replica_that_dies_with_the_master_has_the_change_in_its_log(self, case: Case) -> None:
        clock = SimClock()
        async with pair(clock, min_in_sync=2) as (network, master, replica):
            await prepare(clock, master)
            await result_of(clock, case.make(master.at_work))
            answered = case.look(master.at_work)
            network.cut(master)
            await replica.stop(clean=False)
            await replica.start()
            assert case.look(replica.at_work) == answered
            assert case.look(await promoted(clock, network, master, replica)) == answered

    async def test_a_topic_made_by_its_first_message_has_all_its_queues_on_the_replica(self) -> None:
        clock = SimClock()
        async with pair(clock, min_in_sync=2) as (network, master, replica):
            await send(clock, master, b"x")
            assert replica.at_work.topics.get("t") == master.at_work.topics.get("t") == TopicConfig("t", 4, 4)
            assert (await promoted(clock, network, master, replica)).topics.get("t") == TopicConfig("t", 4, 4)

    async def test_a_topic_and_a_group_that_came_by_themselves_survive_as_an_operator_has_confirmed_them(self) -> None:
        clock = SimClock()
        async with pair(clock, min_in_sync=2) as (network, master, replica):
            replica.at_work.topics.reconfigure(auto_create=True, default_queue_count=2)
            broker = master.at_work
            await prepare(clock, master)
            confirmed = TopicConfig("t", 4, 4), SubscriptionGroup("g")
            assert (broker.topics.get("t"), broker.groups.get("g")) == confirmed
            await result_of(clock, broker.topic_administration.update(confirmed[0]))
            await result_of(clock, broker.group_administration.update(confirmed[1]))
            new = await promoted(clock, network, master, replica)
            assert (new.topics.get("t"), new.groups.get("g")) == confirmed

    @cases
    async def test_a_replica_that_joins_takes_over_what_was_changed_before(self, case: Case) -> None:
        clock = SimClock()
        async with pair(clock) as (network, master, replica):
            await prepare(clock, master)
            network.cut(replica)
            await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 1)
            await result_of(clock, case.make(master.at_work))
            answered = case.look(master.at_work)
            await replica.stop()
            replica.disk = type(replica.disk)()  # a new one
            await replica.start()
            network.heal()
            await until(clock, lambda: master.at_work.replication.status().in_sync_replicas == 2)
            await clock.advance(1)
            assert case.look(replica.at_work) == answered
            await replica.stop(clean=False)  # what it has taken over was on its disk before it was in sync
            network.cut(master)
            await replica.start()
            assert case.look(replica.at_work) == answered


class TestOneBroker:
    @cases
    async def test_a_disk_on_which_sends_are_rejected_takes_the_change(self, case: Case) -> None:
        clock = SimClock()
        async with pair(clock) as (_, master, _):
            await prepare(clock, master)
            before = case.look(master.at_work)
            master.at_work.store.gate.measured(0.93)
            await result_of(clock, case.make(master.at_work))
            assert case.look(master.at_work) != before

    @cases
    async def test_a_disk_that_takes_nothing_rejects_the_change_and_nothing_of_it_is_done(self, case: Case) -> None:
        clock = SimClock()
        async with pair(clock) as (_, master, _):
            await prepare(clock, master)
            before = case.look(master.at_work)
            make_full(master.at_work)
            with pytest.raises(RejectedError, match="no space left"):
                await result_of(clock, case.make(master.at_work))
            assert case.look(master.at_work) == before

    async def test_a_change_without_documents_is_told_by_the_log(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await broker.topic_administration.update(TopicConfig("t", 9, 8, 4))
            await broker.group_administration.update(SubscriptionGroup("g", 3))
        for name in ("topics.json", "subscriptionGroup.json"):
            for path in (store_options().layout.config / name, store_options().layout.config / f"{name}.bak"):
                if disk.exists(path):
                    disk.unlink(path)
        async with running_broker(disk, SimClock()) as broker:
            assert broker.topics.get("t") == TopicConfig("t", 9, 8, 4)
            assert broker.groups.get("g") == SubscriptionGroup("g", 3)

    async def test_an_operator_sees_where_the_log_has_a_change(self) -> None:
        disk, lines = SimDisk(), list[str]()
        async with running_broker(disk, SimClock()) as broker:
            await broker.topic_administration.update(TopicConfig("t", 2, 2))
        assert dump(disk, DumpOptions(STORE_ROOT, verify=True, index_slots=64), lines.append) == 0, "\n".join(lines)
        lines.clear()
        assert dump(disk, DumpOptions(STORE_ROOT, index_slots=64), lines.append) == 0
        assert any("rmq_sys_changes/0 #0" in line and "[changed by an operator]" in line for line in lines), lines

    async def test_clients_cannot_send_changes(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            (outcome,) = await produce(broker, incoming(CHANGES_TOPIC, [b"{}"]))
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            assert CHANGES_TOPIC in SYSTEM_TOPICS

    async def test_a_record_of_another_form_is_passed_over(self, caplog: pytest.LogCaptureFixture) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), clean_stop=False) as broker:
            strange = single_record_batch(CHANGES_TOPIC, 0, producer_record(CHANGES_TOPIC, b"[1]"), 0)
            broker.producing.forward([strange], 1)
        disk.kill()
        async with running_broker(disk, SimClock()) as broker:
            assert broker.topics.get("t") is None
        assert "it is passed over" in caplog.text


class TestRetriesOfADeletedGroup:
    async def begun_anew(self, broker: Broker, clock: SimClock) -> list[bytes]:
        """What the next group of the name gets to try again."""
        session = RecordingSession()
        broker.sessions.heartbeat(session, client("c2", "g"))
        await clock.advance(60)
        return [record.body for record in await read_all(broker, retry_topic("g"))]

    async def give_back(self, broker: Broker, clock: SimClock, body: bytes) -> None:
        (outcome,) = await result_of(clock, produce(broker, incoming("t", [body])))
        code, remark, _ = await result_of(
            clock,
            broker.send_back.send_back("g", outcome.base_log_offset, delay_level=0, max_reconsume_times=0),
        )
        assert code is ResponseCode.SUCCESS, remark

    @pytest.mark.parametrize("restarted", [False, True])
    async def test_go_to_no_later_group_of_its_name(self, *, restarted: bool) -> None:
        clock, disk = SimClock(), SimDisk()
        async with running_broker(disk, clock, clean_stop=not restarted) as broker:
            await self.give_back(broker, clock, b"old")
            await broker.group_administration.delete("g", clean_offsets=True)
            await self.give_back(broker, clock, b"new")
            if not restarted:
                assert await self.begun_anew(broker, clock) == [b"new"]
                return
        disk.kill()
        async with running_broker(disk, clock) as broker:
            assert await self.begun_anew(broker, clock) == [b"new"]

    async def test_go_to_no_later_group_after_a_change_of_masters(self) -> None:
        clock = SimClock()
        async with pair(clock, min_in_sync=2) as (network, master, replica):
            await self.give_back(master.at_work, clock, b"old")
            await result_of(clock, master.at_work.group_administration.delete("g", clean_offsets=True))
            await self.give_back(master.at_work, clock, b"new")
            broker = await promoted(clock, network, master, replica)
            assert await self.begun_anew(broker, clock) == [b"new"]

    async def test_wait_on_for_a_group_that_was_deleted_without_its_offsets(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            await self.give_back(broker, clock, b"old")
            await broker.group_administration.delete("g", clean_offsets=False)
            assert await self.begun_anew(broker, clock) == [b"old"]
