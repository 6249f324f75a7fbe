"""Groups and their settings at work: permissions to consume, retries, progress, and resets."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import RejectedError
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.subscription_groups import SubscriptionGroup
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.processor.group_administration import QUEUE_END, OffsetChange, QueueProgress
from mq_broker.testing import RecordingSession, broker_options, client, incoming, produce, read_all, running_broker
from mqproto.codes import PullStatus, ResponseCode
from mqproto.names import TOOLS_CONSUMER_GROUP, dlq_topic, retry_topic
from osenv import SimClock, SimDisk

START_MS = 1_700_000_000_000


async def pull(broker: Broker, offset: int = 0, *, group: str = "g", topic: str = "t", count: int = 32) -> PullResult:
    query = PullQuery(group, topic, 0, offset, count, 1 << 20, "*")
    return broker.pulling.pull_hot(query) or await broker.pulling.pull(query)


def join(broker: Broker, client_id: str = "c", *, broadcasting: bool = False) -> RecordingSession:
    session = RecordingSession()
    broker.sessions.heartbeat(session, client(client_id, "g", broadcasting=broadcasting))
    return session


async def each_second(broker: Broker, clock: SimClock, count: int) -> None:
    for number in range(count):
        await produce(broker, incoming("t", [b"%d" % number]))
        await clock.advance(1)


class TestPermissions:
    async def test_members_of_a_closed_group_get_nothing_and_held_polls_end(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            answers: dict[str, PullResult] = {}
            for group in ("g", "h"):
                query = PullQuery(group, "t", 0, 1, 32, 1 << 20, "*")
                broker.long_polling.poll(query, 15_000, partial(answers.__setitem__, group))
            await broker.group_administration.update(SubscriptionGroup("g", consume_enable=False))
            assert {group: answer.code for group, answer in answers.items()} == {"g": ResponseCode.NO_PERMISSION}
            rejected = await pull(broker)
            assert rejected.code is ResponseCode.NO_PERMISSION
            assert "consumeEnable=false" in rejected.remark
            assert (await pull(broker, group="h")).status is PullStatus.FOUND
            await broker.group_administration.update(SubscriptionGroup("g"))
            assert (await pull(broker)).status is PullStatus.FOUND

    async def test_broadcasting_is_rejected_while_members_broadcast(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            await broker.group_administration.update(SubscriptionGroup("g", consume_broadcast_enable=False))
            assert (await pull(broker)).status is PullStatus.FOUND
            session = join(broker, broadcasting=True)
            rejected = await pull(broker)
            assert rejected.code is ResponseCode.NO_PERMISSION
            assert "consumeBroadcastEnable=false" in rejected.remark
            broker.sessions.ended(session, "c")
            assert (await pull(broker)).status is PullStatus.FOUND

    async def test_tools_pull_without_leaving_a_group_behind(self) -> None:
        options = broker_options()
        closed = BrokerOptions(options.identity, options.delay_levels, auto_create_groups=False)
        async with running_broker(SimDisk(), SimClock(), options=closed) as broker:
            await produce(broker, incoming("t", [b"x"]))
            assert (await pull(broker, group=TOOLS_CONSUMER_GROUP)).status is PullStatus.FOUND
            assert (await pull(broker)).code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert broker.groups.all() == []
            assert broker.topics.get(retry_topic(TOOLS_CONSUMER_GROUP)) is None

    @pytest.mark.parametrize("group", ["no such name", TOOLS_CONSUMER_GROUP])
    async def test_a_group_that_cannot_be_changed_is_rejected(self, group: str) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            with pytest.raises(RejectedError) as rejected:
                await broker.group_administration.update(SubscriptionGroup(group, 1))
            assert rejected.value.code is ResponseCode.MESSAGE_ILLEGAL


class TestRetries:
    async def given_back(self, broker: Broker, clock: SimClock, count: int) -> None:
        for number in range(count):
            (outcome,) = await produce(broker, incoming("t", [b"%d" % number]))
            code, *_ = await broker.send_back.send_back(
                "g", outcome.base_log_offset, delay_level=0, max_reconsume_times=0
            )
            assert code is ResponseCode.SUCCESS
        await clock.advance(11)

    async def test_they_are_spread_over_the_group_s_retry_queues(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            join(broker)
            await broker.group_administration.update(SubscriptionGroup("g", retry_queue_count=2))
            config = broker.topics.get(retry_topic("g"))
            assert config is not None
            assert (config.read_queue_count, config.write_queue_count) == (2, 2)
            await self.given_back(broker, clock, 4)
            for queue_id in range(2):
                assert len(await read_all(broker, retry_topic("g"), queue_id)) == 2

    async def test_a_group_without_retry_queues_gets_nothing_back_and_no_dead_letters(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            await broker.group_administration.update(SubscriptionGroup("g", retry_queue_count=0))
            join(broker)
            await self.given_back(broker, clock, 2)
            assert broker.store.queue_bounds(retry_topic("g"), 0) == (0, 0)
            assert broker.topics.get(dlq_topic("g")) is None

    @pytest.mark.parametrize("times", [0, 1])
    async def test_the_group_s_number_of_tries_is_kept(self, times: int) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            await broker.group_administration.update(SubscriptionGroup("g", times))
            await self.given_back(broker, clock, 1)
            assert len(await read_all(broker, retry_topic("g"))) == times
            assert len(await read_all(broker, dlq_topic("g"))) == 1 - times

    @pytest.mark.parametrize(
        ("of_group", "of_consumer", "dead"), [(0, 2, False), (5, 1, True), (1, 0, True), (2, 0, False)]
    )
    async def test_a_consumer_s_own_number_counts_before_the_group_s(
        self, of_group: int, of_consumer: int, *, dead: bool
    ) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            await broker.group_administration.update(SubscriptionGroup("g", of_group))
            await produce(broker, incoming("t", [b"x"]))
            (newest,) = await read_all(broker, "t")
            for _ in range(2):
                assert not await read_all(broker, dlq_topic("g"))
                await broker.send_back.send_back("g", newest.log_offset, delay_level=1, max_reconsume_times=of_consumer)
                await clock.advance(2)
                newest = (await read_all(broker, retry_topic("g")))[-1]
            assert bool(await read_all(broker, dlq_topic("g"))) is dead


class TestDeletion:
    async def test_with_active_members_it_is_rejected(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            session = join(broker)
            with pytest.raises(RejectedError, match="active members: c") as rejected:
                await broker.group_administration.delete("g", clean_offsets=True)
            assert rejected.value.code is ResponseCode.NO_PERMISSION
            assert broker.groups.get("g") is not None
            broker.sessions.ended(session, "c")
            await broker.group_administration.delete("g", clean_offsets=True)
            assert broker.groups.get("g") is None

    @pytest.mark.parametrize("clean", [False, True])
    async def test_offsets_and_retries_stay_or_go_together_and_dead_letters_stay(self, *, clean: bool) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            for level in (0, -1):
                (outcome,) = await produce(broker, incoming("t", [b"%d" % level]))
                await broker.send_back.send_back("g", outcome.base_log_offset, delay_level=level, max_reconsume_times=0)
            await clock.advance(11)
            broker.offsets.commit("g", [("t", 0, Progress(2))])
            await broker.group_administration.delete("g", clean_offsets=clean)
            assert broker.groups.get("g") is None
            assert broker.consumer_offsets.query("g", "t", 0) == (None if clean else 2)
            assert len(await read_all(broker, retry_topic("g"))) == (0 if clean else 1)
            assert [record.body for record in await read_all(broker, dlq_topic("g"))] == [b"-1"]

    @pytest.mark.parametrize(
        ("group", "code"),
        [
            ("unknown", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
            (TOOLS_CONSUMER_GROUP, ResponseCode.MESSAGE_ILLEGAL),
        ],
    )
    async def test_what_is_not_there_or_not_the_operator_s_is_rejected(self, group: str, code: ResponseCode) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            with pytest.raises(RejectedError) as rejected:
                await broker.group_administration.delete(group, clean_offsets=False)
            assert rejected.value.code is code

    async def test_a_group_of_which_a_crash_has_left_the_offsets_only_can_be_deleted(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            broker.offsets.commit("g", [("t", 0, Progress(1))])
            assert broker.groups.get("g") is None
            await broker.group_administration.delete("g", clean_offsets=True)
            assert broker.consumer_offsets.query("g", "t", 0) is None


class TestProgress:
    async def test_each_queue_says_how_far_the_group_is_and_when_the_last_one_was_stored(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await each_second(broker, clock, 3)
            await produce(broker, incoming("u", [b"x"]))
            broker.offsets.commit("g", [("t", 0, Progress(2)), ("u", 0, Progress(0))])
            assert (await broker.consume_progress.stats("g", "t"))[:2] == [
                QueueProgress("t", 0, 3, 2, START_MS + 1_000),
                QueueProgress("t", 1, 0, None, 0),
            ]
            of_all = await broker.consume_progress.stats("g")
            assert [(one.topic, one.queue_id) for one in of_all] == [(t, q) for t in "tu" for q in range(4)]
            assert of_all[4] == QueueProgress("u", 0, 1, 0, 0)

    async def test_a_topic_that_is_not_there_has_no_queues_and_an_unknown_group_is_rejected(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            join(broker)
            assert await broker.consume_progress.stats("g", "missing") == []
            with pytest.raises(RejectedError, match="group 'unknown' does not exist") as rejected:
                await broker.consume_progress.stats("unknown")
            assert rejected.value.code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    async def test_a_last_message_that_was_deleted_has_no_time(self) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await each_second(broker, clock, 3)
            await broker.topic_administration.delete("t")
            await produce(broker, incoming("t", [b"new"]))
            broker.offsets.commit("g", [("t", 0, Progress(3))])
            assert (await broker.consume_progress.stats("g"))[0] == QueueProgress("t", 0, 4, 3, 0)


class TestReset:
    @pytest.mark.parametrize(
        ("at_s", "force", "before", "now"),
        [
            (0, True, 4, 0),
            (2.5, True, 4, 3),
            (99, True, 4, 5),
            (None, True, 1, 5),
            (2, False, 4, 2),
            (4, False, 2, 2),
            (3, False, None, 3),
        ],
    )
    async def test_the_first_message_at_or_after_the_time_comes_next(
        self, at_s: float | None, force: bool, before: int | None, now: int
    ) -> None:
        clock = SimClock(START_MS)
        async with running_broker(SimDisk(), clock) as broker:
            await each_second(broker, clock, 5)
            join(broker)
            if before is not None:
                broker.offsets.commit("g", [("t", 0, Progress(before))])
            time_ms = QUEUE_END if at_s is None else START_MS + round(1_000 * at_s)
            changes, told = await broker.consume_progress.reset("g", "t", time_ms, force=force)
            assert changes == [OffsetChange(0, before, now), *(OffsetChange(queue, None, 0) for queue in (1, 2, 3))]
            assert (broker.consumer_offsets.query("g", "t", 0), told) == (now, ["c"])

    async def test_living_members_are_told_and_others_are_not(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"0", b"1"]))
            one, two, other = join(broker, "one"), join(broker, "two"), RecordingSession()
            broker.sessions.heartbeat(other, client("other", "h"))
            broker.offsets.commit("g", [("t", queue_id, Progress(0)) for queue_id in range(1, 4)])
            broker.offsets.commit("g", [("t", 0, Progress(2))])
            _, told = await broker.consume_progress.reset("g", "t", 0, force=False)
            assert told == ["one", "two"]
            moved = [("t", 0, Progress(0, version=1))]
            assert one.resets == two.resets == [("g", moved)], "queues that stay are not told"
            assert other.resets == []
            assert (await broker.consume_progress.reset("g", "t", 0, force=False))[1] == [], "nothing moves any more"

    @pytest.mark.parametrize(
        ("group", "topic", "code"),
        [
            ("unknown", "t", ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
            ("g", "missing", ResponseCode.TOPIC_NOT_EXIST),
        ],
    )
    async def test_an_unknown_group_or_topic_is_rejected(self, group: str, topic: str, code: ResponseCode) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            join(broker)
            with pytest.raises(RejectedError) as rejected:
                await broker.consume_progress.reset(group, topic, 0, force=True)
            assert rejected.value.code is code
            assert list(broker.consumer_offsets.all()) == []


class TestOperatorsThatLeave:
    """The operator's call is given up while the disk works: what was begun is done all the same."""

    async def given_up(self, call: Coroutine[Any, Any, object]) -> None:
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    async def test_members_hear_of_the_reset(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            session = join(broker)
            broker.offsets.commit("g", [("t", 0, Progress(1))])
            await self.given_up(broker.consume_progress.reset("g", "t", QUEUE_END, force=True))
            assert len(session.resets) == 1

    async def test_the_offsets_go_with_the_topic(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            broker.offsets.commit("g", [("t", 0, Progress(1))])
            await self.given_up(broker.topic_administration.delete("t"))
            assert broker.topics.get("t") is None
            assert broker.consumer_offsets.query("g", "t", 0) is None

    async def test_the_settings_go_with_the_offsets(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            await pull(broker)
            broker.offsets.commit("g", [("t", 0, Progress(1))])
            await self.given_up(broker.group_administration.delete("g", clean_offsets=True))
            assert (broker.groups.get("g"), broker.consumer_offsets.query("g", "t", 0)) == (None, None)
