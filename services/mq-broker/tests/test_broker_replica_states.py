"""Topics and groups as a replica takes them over from its master (mechanism H2)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.documents import CONSUMER_OFFSETS, PRODUCER_SEQUENCES, SUBSCRIPTION_GROUPS, TOPICS
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker
from mq_broker.replication.frames import StateDocument
from mq_broker.replication.node import StateExchange
from mq_broker.replication.states import StatesOut
from mq_broker.store.state_files import FORMAT, encode_document
from mq_broker.testing import RecordingSession, client, incoming, produce, running_broker
from mqproto.codes import ResponseCode
from mqproto.names import SYSTEM_TOPICS, retry_topic
from osenv import SimClock, SimDisk


def states_out(broker: Broker) -> StatesOut:
    return StatesOut(broker.store, broker.topics, broker.groups, broker.producer_sequences)


async def take_over(master: Broker, replica: Broker) -> None:
    for document in await states_out(master).take():
        await replica.states_in.take(document)


def copy_log(master: Broker, replica: Broker) -> None:
    """The whole log, though it was not sent by a feed."""
    begin, end = replica.store.log_end, master.store.log_end
    replica.store.append_copy(begin, bytes(master.store.log.read(begin, end - begin)))
    replica.states_in.reach(end)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Broker, Broker]]:
    async with running_broker(SimDisk(), SimClock()) as master, running_broker(SimDisk(), SimClock()) as replica:
        replica.store.follows = True
        yield master, replica


async def documents(out: StatesOut) -> list[str]:
    return [document.name for document in await out.take()]


def tell(sender: StateExchange, receiver: StateExchange) -> None:
    """What groups have finished goes from one end of a link to the other."""
    progress = sender.progress()
    assert progress is not None
    receiver.merge(progress)


class TestOut:
    async def test_everything_at_first_and_then_what_has_changed(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            out = states_out(broker)
            assert (out.is_waiting, await documents(out)) == (True, [TOPICS, SUBSCRIPTION_GROUPS, PRODUCER_SEQUENCES])
            broker.groups.update(SubscriptionGroup("g", 3))
            assert (out.is_waiting, await documents(out)) == (False, []), "the replica finds it in the log"

    async def test_an_earlier_replica_is_sent_what_has_changed(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            out = states_out(broker)
            out.needs_changes = True
            await documents(out)
            assert (out.is_waiting, await documents(out)) == (False, [])
            broker.groups.update(SubscriptionGroup("g", 3))
            assert (out.is_waiting, await documents(out)) == (True, [SUBSCRIPTION_GROUPS])
            await broker.topic_administration.update(TopicConfig("t", 2, 2))
            assert await documents(out) == [TOPICS]

    async def test_progress_is_never_told_ahead_of_a_document(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            exchange = StateExchange(broker.store, broker.topics, broker.consumer_offsets, states_out(broker))
            broker.offsets.commit("g", [("t", 0, Progress(1))])
            assert (exchange.is_waiting, exchange.progress()) == (True, None)
            await exchange.documents()
            assert exchange.progress() is not None
            assert not exchange.is_waiting

    async def test_the_link_is_woken_by_topics_and_by_progress_until_it_ends(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            woken: list[None] = []
            exchange = StateExchange(broker.store, broker.topics, broker.consumer_offsets, states_out(broker))
            exchange.on_change(lambda: woken.append(None))
            broker.topics.update(TopicConfig("t", 2, 2))
            broker.consumer_offsets.begin("g", "t", 0, 0)
            assert len(woken) == 2
            exchange.close()
            broker.topics.update(TopicConfig("t", 3, 3))
            broker.consumer_offsets.begin("g", "t", 1, 0)
            assert len(woken) == 2


class TestIn:
    async def test_the_replica_has_the_masters_topics_and_groups_and_keeps_them(self) -> None:
        disk = SimDisk()
        async with running_broker(SimDisk(), SimClock()) as master:
            await master.topic_administration.update(TopicConfig("t", 3, 2, 4))
            await master.group_administration.update(SubscriptionGroup("g", 3, broker_id=2))
            async with running_broker(disk, SimClock()) as replica:
                replica.store.follows = True
                await replica.store.checkpoint()
                replica.topics.ensure_for_arrival("mine alone", 0)
                before = replica.topics.data_version
                await take_over(master, replica)
                assert replica.topics.data_version == before, "its log is not there yet"
                copy_log(master, replica)
                assert replica.topics.data_version > before
                after = replica.topics.data_version, replica.groups.data_version
                await take_over(master, replica)
                assert (replica.topics.data_version, replica.groups.data_version) == after, "nothing has changed"
        async with running_broker(disk, SimClock()) as replica:
            assert {config for config in replica.topics.all() if config.topic not in SYSTEM_TOPICS} == {
                TopicConfig("t", 3, 2, 4)
            }
            assert replica.groups.all() == [SubscriptionGroup("g", 3, broker_id=2)]

    @pytest.mark.parametrize(
        ("name", "content", "sentence"),
        [
            ("queueLocks.json", b"", "no state that a replica takes over"),
            (CONSUMER_OFFSETS, b"", "no state that a replica takes over"),
            (TOPICS, b"{", "topics.json as the master has it"),
            (TOPICS, encode_document({}, 0), "dataVersion|topicConfigTable"),
            (TOPICS, encode_document({}, 0)[:-9] + b"0" + encode_document({}, 0)[-8:], "CRC"),
            (TOPICS, b'{"topicConfigTable": {}, "dataVersion": {"counter": 9}}', "no format version"),
            (SUBSCRIPTION_GROUPS, encode_document({"subscriptionGroupTable": {"g": 1}}, 0), "no table"),
            (SUBSCRIPTION_GROUPS, encode_document({"subscriptionGroupTable": {"g": {}}}, 0), "retryMaxTimes"),
        ],
    )
    async def test_what_cannot_be_is_rejected_and_changes_nothing(
        self, name: str, content: bytes, sentence: str
    ) -> None:
        async with running_broker(SimDisk(), SimClock()) as replica:
            before = replica.topics.to_json(), replica.groups.to_json()
            with pytest.raises(ValueError, match=sentence):
                await replica.states_in.take(StateDocument(name, content))
            assert (replica.topics.to_json(), replica.groups.to_json()) == before

    async def test_a_document_of_a_newer_format_is_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with running_broker(SimDisk(), SimClock()) as replica:
            with monkeypatch.context() as patch:
                patch.setattr("mq_broker.store.state_files.FORMAT", FORMAT + 1)
                content = encode_document(replica.topics.to_json(), 0)
            with pytest.raises(ValueError, match="format version 2"):
                await replica.states_in.take(StateDocument(TOPICS, content))

    async def test_of_a_deleted_topic_a_replica_shows_nothing_once_its_log_has_the_deletion(self) -> None:
        async with pair() as (master, replica):
            await produce(master, incoming("t", [b"0", b"1", b"2"]))
            copy_log(master, replica)
            await take_over(master, replica)
            replica.consumer_offsets.put("g", "t", 0, Progress(2))
            await produce(master, incoming("t", [b"3", b"4"]), incoming("t", [b"5"], queue_id=1))
            await master.topic_administration.delete("t")
            await take_over(master, replica)
            assert replica.store.queue_bounds("t", 0) == (0, 3)
            copy_log(master, replica)
            assert replica.topics.get("t") is None
            assert replica.consumer_offsets.places() == []
            assert [replica.store.queue_bounds("t", queue_id) for queue_id in (0, 1)] == [(5, 5), (1, 1)]
            await produce(master, incoming("t", [b"new"]))
            copy_log(master, replica)
            assert replica.topics.get("t") == master.topics.get("t")
            assert replica.store.queue_bounds("t", 0) == (5, 6)

    async def test_a_deletion_that_the_master_has_partly_lost_hides_nothing_that_came_after_it(self) -> None:
        """The tail of an unsynced log was lost with what had been deleted; its numbers are given again."""
        async with pair() as (master, replica):
            await produce(master, incoming("t", [b"0", b"1", b"2"]))
            copy_log(master, replica)
            master.topics.delete("t", {0: 7})
            await take_over(master, replica)
            master.topics.clamp_deletions(master.store.queue_end)
            await produce(master, incoming("t", [b"new"]))
            await take_over(master, replica)
            copy_log(master, replica)
            assert replica.store.queue_bounds("t", 0) == (3, 4)

    async def test_who_waits_at_the_replica_for_a_topic_that_is_deleted_hears_of_it(self) -> None:
        async with pair() as (master, replica):
            for topic in ("t", "u"):
                await master.topic_administration.update(TopicConfig(topic, 1, 1))
            copy_log(master, replica)
            answers: list[PullResult] = []
            for topic in ("t", "u"):
                replica.long_polling.poll(PullQuery("g", topic, 0, 0, 1, 1, "*"), 10_000, answers.append)
            await master.topic_administration.delete("t")
            copy_log(master, replica)
            assert [answer.code for answer in answers] == [ResponseCode.TOPIC_NOT_EXIST]
            assert replica.long_polling.held == 1

    async def test_a_group_that_was_deleted_with_its_offsets_begins_anew_on_both_sides(self) -> None:
        async with pair() as (master, replica):
            await produce(master, incoming("t", [b"0", b"1", b"2"]))
            await master.group_administration.update(SubscriptionGroup("g"))
            copy_log(master, replica)
            down = StateExchange(master.store, master.topics, master.consumer_offsets, states_out(master))
            up = StateExchange(replica.store, replica.topics, replica.consumer_offsets, None)
            replica.offsets.commit("g", [("t", 0, Progress(3))])
            master.offsets.commit("g", [("t", 0, Progress(2))])
            await master.group_administration.delete("g", clean_offsets=True)
            tell(up, down)
            assert master.consumer_offsets.places() == [], "the replica had not heard of it"
            master.consumer_offsets.begin("g", "t", 0, 1)
            await down.documents()
            copy_log(master, replica)
            assert replica.groups.get("g") is None
            assert replica.consumer_offsets.places() == []
            tell(down, up)
            assert replica.offsets.query("g", "t", 0) == master.offsets.query("g", "t", 0) == Progress(1, (), 1)

    async def test_a_group_that_was_deleted_without_its_offsets_keeps_them_on_both_sides(self) -> None:
        async with pair() as (master, replica):
            await produce(master, incoming("t", [b"0", b"1", b"2"]))
            await master.group_administration.update(SubscriptionGroup("g"))
            copy_log(master, replica)
            replica.offsets.commit("g", [("t", 0, Progress(3))])
            master.offsets.commit("g", [("t", 0, Progress(2))])
            await master.group_administration.delete("g", clean_offsets=False)
            copy_log(master, replica)
            assert replica.groups.get("g") is None
            assert replica.offsets.query("g", "t", 0) == Progress(3)

    async def test_a_group_with_its_resets_forgotten_begins_anew_after_a_restart_too(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, incoming("t", [b"0", b"1", b"2"]))
            await broker.offsets.set("g", [("t", 0, 2)])
            await broker.group_administration.delete("g", clean_offsets=True)
        async with running_broker(disk, SimClock()) as broker:
            assert broker.consumer_offsets.begin("g", "t", 0, 0) == Progress(0, (), 2)


class TestNothingIsMadeOnAReplica:
    async def test_a_heartbeat_makes_no_group_and_no_retry_topic_and_its_member_is_let_in(self) -> None:
        async with pair() as (_, replica):
            code, remark = replica.sessions.heartbeat(RecordingSession(), client("c", "g"))
            assert (code, remark) == (ResponseCode.SUCCESS, "")
            assert replica.sessions.members.consumer_ids("g") == ["c"]
            assert (replica.groups.get("g"), replica.topics.get(retry_topic("g"))) == (None, None)

    async def test_a_pull_makes_no_group(self) -> None:
        async with pair() as (master, replica):
            await produce(master, incoming("t", [b"0"]))
            copy_log(master, replica)
            await replica.store.sync()
            result = replica.pulling.pull_hot(PullQuery("g", "t", 0, 0, 1, 1, "*"))
            assert result is not None
            assert (result.count, replica.groups.get("g")) == (1, None)
