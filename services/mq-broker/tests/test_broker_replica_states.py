"""Topics and groups as a slave takes them over from its master (mechanism H2)."""

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


async def take_over(master: Broker, slave: Broker) -> None:
    for document in await states_out(master).take():
        await slave.states_in.take(document)


def copy_log(master: Broker, slave: Broker) -> None:
    """The whole log, though it was not sent by a feed."""
    begin, end = slave.store.log_end, master.store.log_end
    slave.store.append_copy(begin, bytes(master.store.log.read(begin, end - begin)))
    slave.states_in.reach(end)


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[Broker, Broker]]:
    async with running_broker(SimDisk(), SimClock()) as master, running_broker(SimDisk(), SimClock()) as slave:
        slave.store.follows = True
        yield master, slave


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
            assert (out.is_waiting, await documents(out)) == (False, []), "the slave finds it in the log"

    async def test_an_earlier_slave_is_sent_what_has_changed(self) -> None:
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
    async def test_the_slave_has_the_masters_topics_and_groups_and_keeps_them(self) -> None:
        disk = SimDisk()
        async with running_broker(SimDisk(), SimClock()) as master:
            await master.topic_administration.update(TopicConfig("t", 3, 2, 4))
            await master.group_administration.update(SubscriptionGroup("g", 3, broker_id=2))
            async with running_broker(disk, SimClock()) as slave:
                slave.store.follows = True
                await slave.store.checkpoint()
                slave.topics.ensure_for_arrival("mine alone", 0)
                before = slave.topics.data_version
                await take_over(master, slave)
                assert slave.topics.data_version == before, "its log is not there yet"
                copy_log(master, slave)
                assert slave.topics.data_version > before
                after = slave.topics.data_version, slave.groups.data_version
                await take_over(master, slave)
                assert (slave.topics.data_version, slave.groups.data_version) == after, "nothing has changed"
        async with running_broker(disk, SimClock()) as slave:
            assert {config for config in slave.topics.all() if config.topic not in SYSTEM_TOPICS} == {
                TopicConfig("t", 3, 2, 4)
            }
            assert slave.groups.all() == [SubscriptionGroup("g", 3, broker_id=2)]

    @pytest.mark.parametrize(
        ("name", "content", "sentence"),
        [
            ("queueLocks.json", b"", "no state that a slave takes over"),
            (CONSUMER_OFFSETS, b"", "no state that a slave takes over"),
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
        async with running_broker(SimDisk(), SimClock()) as slave:
            before = slave.topics.to_json(), slave.groups.to_json()
            with pytest.raises(ValueError, match=sentence):
                await slave.states_in.take(StateDocument(name, content))
            assert (slave.topics.to_json(), slave.groups.to_json()) == before

    async def test_a_document_of_a_newer_format_is_rejected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with running_broker(SimDisk(), SimClock()) as slave:
            with monkeypatch.context() as patch:
                patch.setattr("mq_broker.store.state_files.FORMAT", FORMAT + 1)
                content = encode_document(slave.topics.to_json(), 0)
            with pytest.raises(ValueError, match="format version 2"):
                await slave.states_in.take(StateDocument(TOPICS, content))

    async def test_of_a_deleted_topic_a_slave_shows_nothing_once_its_log_has_the_deletion(self) -> None:
        async with pair() as (master, slave):
            await produce(master, incoming("t", [b"0", b"1", b"2"]))
            copy_log(master, slave)
            await take_over(master, slave)
            slave.consumer_offsets.put("g", "t", 0, Progress(2))
            await produce(master, incoming("t", [b"3", b"4"]), incoming("t", [b"5"], queue_id=1))
            await master.topic_administration.delete("t")
            await take_over(master, slave)
            assert slave.store.queue_bounds("t", 0) == (0, 3)
            copy_log(master, slave)
            assert slave.topics.get("t") is None
            assert slave.consumer_offsets.places() == []
            assert [slave.store.queue_bounds("t", queue_id) for queue_id in (0, 1)] == [(5, 5), (1, 1)]
            await produce(master, incoming("t", [b"new"]))
            copy_log(master, slave)
            assert slave.topics.get("t") == master.topics.get("t")
            assert slave.store.queue_bounds("t", 0) == (5, 6)

    async def test_a_deletion_that_the_master_has_partly_lost_hides_nothing_that_came_after_it(self) -> None:
        """The tail of an unsynced log was lost with what had been deleted; its numbers are given again."""
        async with pair() as (master, slave):
            await produce(master, incoming("t", [b"0", b"1", b"2"]))
            copy_log(master, slave)
            master.topics.delete("t", {0: 7})
            await take_over(master, slave)
            master.topics.clamp_deletions(master.store.queue_end)
            await produce(master, incoming("t", [b"new"]))
            await take_over(master, slave)
            copy_log(master, slave)
            assert slave.store.queue_bounds("t", 0) == (3, 4)

    async def test_who_waits_at_the_slave_for_a_topic_that_is_deleted_hears_of_it(self) -> None:
        async with pair() as (master, slave):
            for topic in ("t", "u"):
                await master.topic_administration.update(TopicConfig(topic, 1, 1))
            copy_log(master, slave)
            answers: list[PullResult] = []
            for topic in ("t", "u"):
                slave.long_polling.poll(PullQuery("g", topic, 0, 0, 1, 1, "*"), 10_000, answers.append)
            await master.topic_administration.delete("t")
            copy_log(master, slave)
            assert [answer.code for answer in answers] == [ResponseCode.TOPIC_NOT_EXIST]
            assert slave.long_polling.held == 1

    async def test_a_group_that_was_deleted_with_its_offsets_begins_anew_on_both_sides(self) -> None:
        async with pair() as (master, slave):
            await produce(master, incoming("t", [b"0", b"1", b"2"]))
            await master.group_administration.update(SubscriptionGroup("g"))
            copy_log(master, slave)
            down = StateExchange(master.store, master.topics, master.consumer_offsets, states_out(master))
            up = StateExchange(slave.store, slave.topics, slave.consumer_offsets, None)
            slave.offsets.commit("g", [("t", 0, Progress(3))])
            master.offsets.commit("g", [("t", 0, Progress(2))])
            await master.group_administration.delete("g", clean_offsets=True)
            tell(up, down)
            assert master.consumer_offsets.places() == [], "the slave had not heard of it"
            master.consumer_offsets.begin("g", "t", 0, 1)
            await down.documents()
            copy_log(master, slave)
            assert slave.groups.get("g") is None
            assert slave.consumer_offsets.places() == []
            tell(down, up)
            assert slave.offsets.query("g", "t", 0) == master.offsets.query("g", "t", 0) == Progress(1, (), 1)

    async def test_a_group_that_was_deleted_without_its_offsets_keeps_them_on_both_sides(self) -> None:
        async with pair() as (master, slave):
            await produce(master, incoming("t", [b"0", b"1", b"2"]))
            await master.group_administration.update(SubscriptionGroup("g"))
            copy_log(master, slave)
            slave.offsets.commit("g", [("t", 0, Progress(3))])
            master.offsets.commit("g", [("t", 0, Progress(2))])
            await master.group_administration.delete("g", clean_offsets=False)
            copy_log(master, slave)
            assert slave.groups.get("g") is None
            assert slave.offsets.query("g", "t", 0) == Progress(3)

    async def test_a_group_with_its_resets_forgotten_begins_anew_after_a_restart_too(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, incoming("t", [b"0", b"1", b"2"]))
            await broker.offsets.set("g", [("t", 0, 2)])
            await broker.group_administration.delete("g", clean_offsets=True)
        async with running_broker(disk, SimClock()) as broker:
            assert broker.consumer_offsets.begin("g", "t", 0, 0) == Progress(0, (), 2)


class TestNothingIsMadeOnASlave:
    async def test_a_heartbeat_makes_no_group_and_no_retry_topic_and_its_member_is_let_in(self) -> None:
        async with pair() as (_, slave):
            code, remark = slave.sessions.heartbeat(RecordingSession(), client("c", "g"))
            assert (code, remark) == (ResponseCode.SUCCESS, "")
            assert slave.sessions.members.consumer_ids("g") == ["c"]
            assert (slave.groups.get("g"), slave.topics.get(retry_topic("g"))) == (None, None)

    async def test_a_pull_makes_no_group(self) -> None:
        async with pair() as (master, slave):
            await produce(master, incoming("t", [b"0"]))
            copy_log(master, slave)
            await slave.store.sync()
            result = slave.pulling.pull_hot(PullQuery("g", "t", 0, 0, 1, 1, "*"))
            assert result is not None
            assert (result.count, slave.groups.get("g")) == (1, None)
