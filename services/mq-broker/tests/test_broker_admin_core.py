"""What an operator changes, as tables: topics that are deleted, groups and their settings."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.members import GroupMembers
from mq_broker.core.subscription_groups import SubscriptionGroup, SubscriptionGroups
from mq_broker.core.topics import TopicConfig, TopicTable
from mq_broker.testing import client
from mqproto.names import SYSTEM_TOPICS, TOOLS_CONSUMER_GROUP, IllegalNameError, dlq_topic, retry_topic


def topics(*, auto_create: bool = True) -> TopicTable:
    return TopicTable(auto_create=auto_create, default_queue_count=4, delay_level_count=18)


class TestDeletedTopics:
    def deleted(self) -> TopicTable:
        table = topics()
        table.update(TopicConfig("t", 2, 2))
        table.delete("t", {0: 10, 1: 3})
        return table

    def test_it_is_gone_and_each_queue_s_next_number_is_kept(self) -> None:
        table = self.deleted()
        assert table.get("t") is None
        assert [table.deleted_below("t", queue_id) for queue_id in range(3)] == [10, 3, 0]
        assert list(table.deletions()) == [("t", 0, 10), ("t", 1, 3)]

    def test_a_deletion_is_announced_and_counted(self) -> None:
        table = topics()
        table.update(TopicConfig("t", 2, 2))
        changes: list[int] = []
        before = table.data_version
        table.on_change(lambda: changes.append(table.data_version))
        table.delete("t", {})
        assert changes == [before + 1]

    @pytest.mark.parametrize("topic", sorted(SYSTEM_TOPICS))
    def test_system_topics_cannot_be_deleted(self, topic: str) -> None:
        table = topics()
        with pytest.raises(ValueError, match="belongs to the queue itself and cannot be deleted"):
            table.check_delete(topic)

    def test_a_topic_that_is_not_there_cannot_be_deleted(self) -> None:
        table = self.deleted()
        with pytest.raises(KeyError):
            table.check_delete("t")

    def test_what_was_deleted_does_not_bring_it_back_and_what_came_later_does(self) -> None:
        table = self.deleted()
        table.recovered("t", 0, 9)
        table.promised("t", 0)
        assert table.get("t") is None
        table.recovered("t", 1, 3)
        assert table.get("t") == TopicConfig("t", 4, 4), "as it is created by its first message"
        table.promised("t", 4)
        assert table.get("t") == TopicConfig("t", 5, 5)

    def test_a_topic_of_the_same_name_keeps_the_numbers_and_may_be_deleted_again(self) -> None:
        table = self.deleted()
        table.update(TopicConfig("t", 1, 1))
        assert table.deleted_below("t", 1) == 3
        table.delete("t", {0: 12, 1: 3})
        assert list(table.deletions()) == [("t", 0, 12), ("t", 1, 3)]

    def test_a_number_beyond_the_queue_s_end_comes_back_to_it(self) -> None:
        table = self.deleted()
        before = table.data_version
        table.clamp_deletions(lambda topic, queue_id: 5)
        assert list(table.deletions()) == [("t", 0, 5), ("t", 1, 3)]
        assert table.data_version == before + 1

    def test_the_document_keeps_the_deletions(self) -> None:
        table, other = self.deleted(), topics()
        other.load_json(table.to_json())
        assert list(other.deletions()) == [("t", 0, 10), ("t", 1, 3)]
        assert other.all() == table.all()

    def test_a_document_without_deletions_is_taken_as_it_is(self) -> None:
        document = self.deleted().to_json()
        del document["deletedBelow"]
        other = topics()
        other.load_json(document)
        assert list(other.deletions()) == []

    @pytest.mark.parametrize("deletions", [[], {"t": []}, {"t": {"x": 1}}, {"t": {"0": "many"}}])
    def test_a_document_of_another_form_is_rejected(self, deletions: object) -> None:
        with pytest.raises((KeyError, TypeError, ValueError)):
            topics().load_json(topics().to_json() | {"deletedBelow": deletions})


class TestTopicsForArrivals:
    @pytest.mark.parametrize(
        ("topic", "queue_id", "count"),
        [("t", 0, 4), ("t", 6, 7), (retry_topic("g"), 0, 1), (retry_topic("g"), 2, 3), (dlq_topic("g"), 0, 1)],
    )
    def test_one_that_is_missing_is_made_with_the_usual_queues(self, topic: str, queue_id: int, count: int) -> None:
        table = topics(auto_create=False)
        assert table.ensure_for_arrival(topic, queue_id) == queue_id
        assert table.get(topic) == TopicConfig(topic, count, count)

    def test_one_that_is_there_stays_as_it_is_and_another_queue_takes_what_a_removed_one_would(self) -> None:
        table = topics()
        table.update(TopicConfig("t", 3, 2, 4))
        assert [table.ensure_for_arrival("t", queue_id) for queue_id in range(6)] == [0, 1, 2, 1, 0, 1]
        assert table.get("t") == TopicConfig("t", 3, 2, 4)

    def test_a_retry_topic_grows_with_its_group_and_never_shrinks(self) -> None:
        table = topics()
        assert table.ensure_group_topic(retry_topic("g"), 3).queue_count == 3
        assert table.ensure_group_topic(retry_topic("g"), 1).queue_count == 3
        with pytest.raises(ValueError, match="no retry or dead-letter topic"):
            table.ensure_group_topic("t")


class TestSubscriptionGroups:
    def test_settings_survive_the_document(self) -> None:
        groups, other = SubscriptionGroups(auto_create=False), SubscriptionGroups(auto_create=False)
        group = SubscriptionGroup("g", 3, consume_enable=False, consume_broadcast_enable=False, retry_queue_count=2)
        groups.update(group)
        groups.update(SubscriptionGroup("a"))
        other.load_json(groups.to_json())
        assert other.all() == groups.all() == [SubscriptionGroup("a"), group]

    def test_the_document_has_rocketmq_s_fields(self) -> None:
        groups = SubscriptionGroups(auto_create=False)
        groups.update(SubscriptionGroup("g"))
        assert groups.to_json()["subscriptionGroupTable"] == {
            "g": {
                "brokerId": 0,
                "consumeBroadcastEnable": True,
                "consumeEnable": True,
                "differentSubscriptionsAllowed": False,
                "groupName": "g",
                "retryMaxTimes": 16,
                "retryQueueNums": 1,
                "whichBrokerWhenConsumeSlowly": 1,
            }
        }

    def test_a_document_of_the_first_version_is_read(self) -> None:
        groups = SubscriptionGroups(auto_create=False)
        entry = {"groupName": "g", "consumeEnable": True, "retryMaxTimes": 7, "retryQueueNums": 1}
        groups.load_json({"dataVersion": {"counter": 4}, "subscriptionGroupTable": {"g": entry}})
        assert groups.get("g") == SubscriptionGroup("g", 7)
        assert groups.data_version == 4

    @pytest.mark.parametrize(
        ("group", "sentence"),
        [
            (SubscriptionGroup("no such name"), "not allowed"),
            (SubscriptionGroup("g", -1), "-1 tries"),
            (SubscriptionGroup("g", retry_queue_count=-1), "-1 retry queues"),
            (SubscriptionGroup("g", retry_queue_count=1_025), "allowed are 0 to 1024"),
            (SubscriptionGroup(TOOLS_CONSUMER_GROUP, 1), "belongs to the queue itself"),
        ],
    )
    def test_a_bad_update_is_rejected_and_changes_nothing(self, group: SubscriptionGroup, sentence: str) -> None:
        groups = SubscriptionGroups(auto_create=True)
        with pytest.raises(ValueError, match=sentence):
            groups.update(group)
        assert (groups.all(), groups.data_version) == ([], 0)

    def test_a_deleted_group_is_gone_until_it_is_made_again(self) -> None:
        groups = SubscriptionGroups(auto_create=False)
        groups.update(SubscriptionGroup("g", 3))
        before = groups.data_version
        groups.delete("g")
        groups.delete("g")
        assert (groups.get("g"), groups.data_version) == (None, before + 1)
        assert groups.get_or_create("g") is None

    def test_the_tools_group_is_always_there_and_never_written_down(self) -> None:
        groups = SubscriptionGroups(auto_create=False)
        assert groups.get_or_create(TOOLS_CONSUMER_GROUP) == SubscriptionGroup(TOOLS_CONSUMER_GROUP)
        assert (groups.all(), groups.data_version) == ([], 0)
        with pytest.raises(ValueError, match="cannot be changed or deleted"):
            groups.delete(TOOLS_CONSUMER_GROUP)
        rocketmq = {TOOLS_CONSUMER_GROUP: {"consumeEnable": False, "retryMaxTimes": 1, "retryQueueNums": 1}}
        groups.load_json({"dataVersion": {"counter": 1}, "subscriptionGroupTable": rocketmq})
        assert groups.get_or_create(TOOLS_CONSUMER_GROUP) == SubscriptionGroup(TOOLS_CONSUMER_GROUP)

    def test_an_illegal_name_is_not_made(self) -> None:
        with pytest.raises(IllegalNameError):
            SubscriptionGroups(auto_create=True).get_or_create("no such name")


class TestForgottenOffsets:
    def offsets(self) -> ConsumerOffsets:
        offsets = ConsumerOffsets()
        for group, topic, queue_id in (("a", "t", 0), ("a", "t", 1), ("b", "t", 0), ("a", "u", 0)):
            offsets.put(group, topic, queue_id, Progress(5))
        return offsets

    @pytest.mark.parametrize(
        ("forget", "left"),
        [
            (lambda offsets: offsets.forget_topic("t"), {("a", "u", 0)}),
            (lambda offsets: offsets.forget_group("a"), {("b", "t", 0)}),
            (lambda offsets: offsets.forget_below("t", {0: 6, 1: 5}.__getitem__), {("a", "t", 1), ("a", "u", 0)}),
            (lambda offsets: offsets.forget_topic("x"), {("a", "t", 0), ("a", "t", 1), ("b", "t", 0), ("a", "u", 0)}),
        ],
        ids=["a topic", "a group", "below a number", "nothing"],
    )
    def test_they_are_absent_then_and_the_change_is_counted(
        self, forget: Callable[[ConsumerOffsets], None], left: set[tuple[str, str, int]]
    ) -> None:
        offsets = self.offsets()
        before = offsets.data_version
        forget(offsets)
        assert {key[:3] for key in offsets.all()} == left
        assert (offsets.data_version > before) == (len(left) < 4)

    def test_the_topics_of_a_group(self) -> None:
        assert self.offsets().topics_of("a") == ["t", "u"]
        assert self.offsets().topics_of("c") == []


class TestMembers:
    def test_a_group_broadcasts_while_a_member_says_so(self) -> None:
        members, session, other = GroupMembers[object](), object(), object()
        members.heartbeat(client("a", "g"), session, 0)
        assert not members.is_broadcasting("g")
        members.heartbeat(client("b", "g", broadcasting=True), other, 0)
        assert members.is_broadcasting("g")
        members.leave("b", other)
        assert not members.is_broadcasting("g")
