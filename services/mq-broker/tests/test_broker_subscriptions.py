"""Members of a group are alike: how consumers differ, and which a group takes (mechanism C4)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mq_broker.core.members import ClientGroups, Consumer, Subscription, difference
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.processor.broker import Broker
from mq_broker.testing import RecordingSession, client, running_broker
from mqproto.codes import ResponseCode
from mqproto.names import retry_topic
from osenv import SimClock, SimDisk

SQL = "SQL92"


def wanting(*subscriptions: Subscription) -> Consumer:
    return Consumer("g", subscriptions)


class TestDifference:
    @pytest.mark.parametrize(
        ("one", "other"),
        [
            (Subscription("t", "a || b"), Subscription("t", " b||a ")),
            (Subscription("t", "a || b"), Subscription("t", "a||b||a", "")),
            (Subscription("t", ""), Subscription("t", "*", "")),
            (Subscription("t", "a  >  1", SQL), Subscription("t", " a > 1\n", SQL)),
        ],
    )
    def test_the_same_written_in_another_way_is_no_difference(self, one: Subscription, other: Subscription) -> None:
        assert difference("X", wanting(one), wanting(other)) is None

    def test_neither_the_order_nor_the_retry_topic_nor_the_beginning_is_one(self) -> None:
        t, u, retry = Subscription("t"), Subscription("u"), Subscription(retry_topic("g"))
        assert difference("X", wanting(t, u, retry), replace(wanting(u, t), consume_from_where=2)) is None

    @pytest.mark.parametrize(
        ("member", "newcomer", "sentence"),
        [
            (
                wanting(Subscription("orders", "paid")),
                wanting(Subscription("orders", "created")),
                "member X wants tag 'paid' of topic 'orders', this client wants tag 'created'",
            ),
            (
                wanting(Subscription("orders")),
                wanting(Subscription("orders", "b || a")),
                "member X wants everything of topic 'orders', this client wants tags 'a || b'",
            ),
            (
                wanting(Subscription("orders", "a", SQL)),
                wanting(Subscription("orders", "a")),
                "member X wants messages with SQL92 'a' of topic 'orders', this client wants tag 'a'",
            ),
            (
                wanting(Subscription("t", "a = 'x  y'", SQL)),
                wanting(Subscription("t", "a = 'x y'", SQL)),
                """member X wants messages with SQL92 "a = 'x  y'" of topic 't', """
                """this client wants messages with SQL92 "a = 'x y'\"""",
            ),
            (
                wanting(Subscription("t"), Subscription("u")),
                wanting(Subscription("t")),
                "member X subscribes to topic 'u', this client does not",
            ),
            (
                wanting(),
                wanting(Subscription("t")),
                "this client subscribes to topic 't', member X does not",
            ),
            (
                Consumer("g", broadcasting=True),
                Consumer("g", orderly=True),
                "member X consumes by broadcasting, this client by clustering",
            ),
            (
                Consumer("g", orderly=True),
                Consumer("g"),
                "member X consumes in order, this client concurrently",
            ),
        ],
    )
    def test_a_difference_is_told_in_words(self, member: Consumer, newcomer: Consumer, sentence: str) -> None:
        assert difference("X", member, newcomer) == sentence


def beat(broker: Broker, said: ClientGroups, session: RecordingSession | None = None) -> tuple[ResponseCode, str]:
    return broker.sessions.heartbeat(session or RecordingSession(), said)


PAID, CREATED = {"orders": "paid"}, {"orders": "created"}
TAKEN = (ResponseCode.SUCCESS, "")


class TestJoining:
    @pytest.mark.mechanism("C4")
    async def test_a_newcomer_that_differs_is_rejected_with_the_difference_and_what_to_do(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            assert beat(broker, client("X", "closers", topics=PAID)) == TAKEN
            code, sentence = beat(broker, client("Y", "closers", topics=CREATED))
            assert code is ResponseCode.SUBSCRIPTION_NOT_CONSISTENT
            assert sentence == (
                "group 'closers': member X wants tag 'paid' of topic 'orders', this client wants tag 'created'; "
                "members of a group have to subscribe alike; for a rolling change, "
                "`mqadmin updateSubGroup --differentSubscriptions true` lets them differ"
            )
            assert broker.sessions.members.consumer_ids("closers") == ["X"]

    async def test_it_is_a_member_of_the_other_groups_all_the_same(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            beat(broker, client("X", "closers", topics=PAID))
            code, _ = beat(broker, client("Y", "closers", "openers", producer="shop", topics=CREATED))
            assert code is ResponseCode.SUBSCRIPTION_NOT_CONSISTENT
            members = broker.sessions.members
            assert (members.consumer_ids("closers"), members.consumer_ids("openers")) == (["X"], ["Y"])
            assert len(members.producer_sessions("shop")) == 1

    async def test_several_rejections_are_all_told_and_the_first_gives_the_code(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            beat(broker, client("X", "a", "b", topics=PAID))
            code, sentence = beat(broker, client("Y", "no good", "a", "b", topics=CREATED))
            assert code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert [name in sentence for name in ("'no good'", "group 'a'", "group 'b'")] == [True] * 3

    async def test_a_member_that_changes_its_mind_leaves_unless_it_is_alone(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            x, y = RecordingSession(), RecordingSession()
            assert beat(broker, client("X", "g", topics=PAID), x) == TAKEN
            assert beat(broker, client("X", "g", topics=CREATED), x) == TAKEN
            assert beat(broker, client("Y", "g", topics=CREATED), y) == TAKEN
            y.changed.clear()
            assert beat(broker, client("X", "g", topics=PAID), x)[0] is ResponseCode.SUBSCRIPTION_NOT_CONSISTENT
            assert (broker.sessions.members.consumer_ids("g"), y.changed) == (["Y"], ["g"])

    async def test_a_client_that_comes_back_does_not_differ_from_its_old_self(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            beat(broker, client("X", "g", topics=PAID))
            assert beat(broker, client("X", "g", topics=CREATED)) == TAKEN

    async def test_who_was_rejected_is_taken_when_the_others_have_gone(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            x, y = RecordingSession(), RecordingSession()
            beat(broker, client("X", "g", topics=PAID), x)
            assert beat(broker, client("Y", "g", topics=CREATED), y)[0] is ResponseCode.SUBSCRIPTION_NOT_CONSISTENT
            broker.sessions.ended(x, "X")
            assert beat(broker, client("Y", "g", topics=CREATED), y) == TAKEN
            assert y.changed == ["g"]

    @pytest.mark.parametrize(("broadcasting", "orderly"), [(True, False), (False, True)])
    async def test_model_and_order_have_to_be_alike_too(self, *, broadcasting: bool, orderly: bool) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            beat(broker, client("X", "g", topics=PAID))
            said = client("Y", "g", topics=PAID, broadcasting=broadcasting, orderly=orderly)
            assert beat(broker, said)[0] is ResponseCode.SUBSCRIPTION_NOT_CONSISTENT

    async def test_an_expression_that_cannot_be_read_is_rejected_at_once(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            code, sentence = beat(broker, client("X", "g", topics={"orders": "a ||"}))
            assert code is ResponseCode.SUBSCRIPTION_PARSE_FAILED
            assert sentence.startswith("group 'g', topic 'orders': the tag expression 'a ||'")
            assert broker.groups.get("g") is None

    async def test_sql92_is_rejected_while_the_broker_does_not_filter_by_it(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            said = ClientGroups("X", consumers=(wanting(Subscription("orders", "a > 1", SQL)),))
            code, sentence = beat(broker, said)
            assert (code, "enablePropertyFilter=true" in sentence) == (ResponseCode.SUBSCRIPTION_PARSE_FAILED, True)


class TestRollingChange:
    async def test_the_switch_lets_members_differ_and_expels_none_when_it_is_turned_off(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            x, y = RecordingSession(), RecordingSession()
            beat(broker, client("X", "g", topics=PAID), x)
            switch = broker.group_administration.update
            await switch(SubscriptionGroup("g", different_subscriptions_allowed=True))
            assert beat(broker, client("Y", "g", topics=CREATED), y) == TAKEN
            await switch(SubscriptionGroup("g"))
            assert beat(broker, client("Y", "g", topics=CREATED), y) == TAKEN, "it said so before"
            assert beat(broker, client("Z", "g", topics=CREATED))[0] is ResponseCode.SUBSCRIPTION_NOT_CONSISTENT
            broker.sessions.ended(x, "X")
            assert beat(broker, client("Z", "g", topics=CREATED)) == TAKEN

    async def test_the_switch_survives_a_restart_and_is_off_in_older_files(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock) as broker:
            await broker.group_administration.update(SubscriptionGroup("g", different_subscriptions_allowed=True))
            document = broker.groups.to_json()
        async with running_broker(disk, clock) as broker:
            assert broker.groups.get("g") == SubscriptionGroup("g", different_subscriptions_allowed=True)
            del document["subscriptionGroupTable"]["g"]["differentSubscriptionsAllowed"]
            broker.groups.load_json(document)
            assert broker.groups.get("g") == SubscriptionGroup("g")
