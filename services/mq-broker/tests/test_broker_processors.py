"""Requests: produce, pull, long polls, send-back, sessions, offsets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.limits import POLLS_SERVED_AT_ONCE_MAX, RejectedError
from mq_broker.core.pulling import PullQuery, PullResult
from mq_broker.core.rewrite import waiting_copy
from mq_broker.core.topics import TopicConfig
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.processor.long_polling import SUSPEND_MS_MAX
from mq_broker.processor.producing import IncomingBatch
from mq_broker.testing import RecordingSession, broker_options, client, incoming, produce, read_all, running_broker
from mqproto.codes import PullStatus, ResponseCode
from mqproto.names import SCHEDULE_TOPIC, TIMER_TOPIC, dlq_topic, retry_topic
from mqproto.properties import ORIGIN_MESSAGE_ID, RETRY_TOPIC, decode_properties
from osenv import SimClock, SimDisk

GROUP = "test-group"


def query(offset: int = 0, *, topic: str = "t", queue_id: int = 0, tags: str = "*", messages: int = 32) -> PullQuery:
    return PullQuery(GROUP, topic, queue_id, offset, messages, 1 << 20, tags)


async def pull(broker: Broker, request: PullQuery) -> PullResult:
    return broker.pulling.pull_hot(request) or await broker.pulling.pull(request)


class TestProducing:
    @pytest.mark.parametrize(
        ("batch", "code", "sentence"),
        [
            (incoming("no such name", [b"x"]), ResponseCode.MESSAGE_ILLEGAL, "not allowed"),
            (incoming("t", [b"x"], queue_id=4), ResponseCode.TOPIC_NOT_EXIST, "has no queue 4"),
            (incoming("t", [b"x"], queue_id=-1), ResponseCode.MESSAGE_ILLEGAL, "has no queue -1"),
            (incoming(SCHEDULE_TOPIC, [b"x"]), ResponseCode.MESSAGE_ILLEGAL, "belongs to the queue itself"),
            (incoming("read-only", [b"x"]), ResponseCode.NO_PERMISSION, "may not be written"),
            (IncomingBatch("t", 0, 1, b"nonsense"), ResponseCode.MESSAGE_ILLEGAL, "8 bytes are left"),
            (IncomingBatch("t", 0, 0, b""), ResponseCode.MESSAGE_ILLEGAL, "holds 0"),
        ],
    )
    async def test_a_batch_that_cannot_be_stored_is_rejected_and_its_neighbour_is_not(
        self, batch: IncomingBatch, code: ResponseCode, sentence: str
    ) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            broker.topics.update(TopicConfig("read-only", 4, 4, 4))
            bad, good = await produce(broker, batch, incoming("t", [b"good"]))
            assert bad.code is code
            assert sentence in bad.remark
            assert good.code is ResponseCode.SUCCESS
            assert [record.body for record in await read_all(broker, "t")] == [b"good"]

    @pytest.mark.mechanism("N8")
    async def test_without_auto_creation_an_unknown_topic_is_rejected(self) -> None:
        options = broker_options()
        closed = BrokerOptions(options.identity, options.delay_levels, auto_create_topics=False)
        async with running_broker(SimDisk(), SimClock(), options=closed) as broker:
            (outcome,) = await produce(broker, incoming("t", [b"x"]))
            assert outcome.code is ResponseCode.TOPIC_NOT_EXIST


class TestPulling:
    @pytest.mark.mechanism("C6")
    async def test_the_four_statuses(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"0", b"1", b"2"], tag="a"))
            found = await pull(broker, query(1))
            assert (found.status, found.count, found.next_begin_offset) == (PullStatus.FOUND, 2, 3)
            assert (found.min_offset, found.max_offset) == (0, 3)
            unmatched = await pull(broker, query(0, tags="b"))
            assert (unmatched.status, unmatched.next_begin_offset) == (PullStatus.NO_MATCHED_MSG, 3)
            assert (await pull(broker, query(3))).status is PullStatus.NO_NEW_MSG
            illegal = await pull(broker, query(9))
            assert (illegal.status, illegal.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 3)

    @pytest.mark.mechanism("F1")
    async def test_only_matching_tags_come_and_the_offset_passes_the_others(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            for tag in ("a", "b", "a", "c"):
                await produce(broker, incoming("t", [tag.encode()], tag=tag))
            assert [r.body for r in await read_all(broker, "t", expression="a || c")] == [b"a", b"a", b"c"]

    async def test_limits_are_kept_but_one_message_always_comes(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [bytes(1_000)] * 10))
            assert (await pull(broker, query(messages=3))).count == 3
            assert (await pull(broker, PullQuery(GROUP, "t", 0, 0, 32, 2_500, "*"))).count == 2
            assert (await pull(broker, PullQuery(GROUP, "t", 0, 0, 32, 1, "*"))).count == 1
            assert (await pull(broker, PullQuery(GROUP, "t", 0, 0, -5, -5, "*"))).count == 1

    @pytest.mark.parametrize(
        ("request_", "code"),
        [
            (query(topic="unknown"), ResponseCode.TOPIC_NOT_EXIST),
            (query(queue_id=99), ResponseCode.SYSTEM_ERROR),
            (query(tags="a ||"), ResponseCode.SUBSCRIPTION_PARSE_FAILED),
            (query(topic="write-only"), ResponseCode.NO_PERMISSION),
            (PullQuery("bad group", "t", 0, 0, 1, 1, "*"), ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ],
    )
    async def test_what_cannot_be_pulled_is_rejected(self, request_: PullQuery, code: ResponseCode) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            broker.topics.update(TopicConfig("write-only", 1, 1, 2))
            result = await pull(broker, request_)
            assert result.code is code
            assert result.remark


class TestLongPolling:
    @pytest.mark.mechanism("C7")
    async def test_a_poll_is_answered_in_the_step_in_which_its_message_is_stored(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"old"]))
            answers: list[PullResult] = []
            broker.long_polling.poll(query(1), 15_000, answers.append)
            assert (answers, broker.long_polling.held) == ([], 1)
            await produce(broker, incoming("t", [b"other queue"], queue_id=1))
            assert answers == []
            await produce(broker, incoming("t", [b"new"]))
            assert [answer.count for answer in answers] == [1]
            assert broker.long_polling.held == 0

    @pytest.mark.mechanism("C7")
    async def test_a_poll_that_finds_nothing_ends_after_15_s_at_most(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            await produce(broker, incoming("t", [b"x"]))
            answers: list[PullResult] = []
            broker.long_polling.poll(query(1), 60_000, answers.append)
            await clock.advance(SUSPEND_MS_MAX / 1000 - 0.001)
            assert answers == []
            await clock.advance(0.001)
            assert [answer.status for answer in answers] == [PullStatus.NO_NEW_MSG]

    @pytest.mark.mechanism("C7")
    async def test_thousands_of_polls_wait_and_all_are_woken_by_one_message(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            answers = Counter[int]()
            step = 0
            for _ in range(5_000):
                broker.long_polling.poll(query(1), 15_000, lambda _: answers.update([step]))
            await produce(broker, incoming("t", [b"y"]))
            while answers.total() < 5_000:  # in steps, between which others have their turn
                step += 1
                await asyncio.sleep(0)
            assert max(answers[one] for one in answers if one) <= POLLS_SERVED_AT_ONCE_MAX

    async def test_a_cancelled_poll_is_forgotten_and_an_expired_one_answered(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            answers: list[tuple[str, PullResult]] = []

            def reply(name: str) -> Callable[[PullResult], None]:
                return lambda result: answers.append((name, result))

            cancelled = broker.long_polling.poll(query(1), 15_000, reply("cancelled"))
            expired = broker.long_polling.poll(query(1), 15_000, reply("expired"))
            broker.long_polling.cancel(cancelled)
            broker.long_polling.expire(expired)
            assert [(name, result.status) for name, result in answers] == [("expired", PullStatus.NO_NEW_MSG)]
            assert broker.long_polling.held == 0


class TestSendBack:
    @pytest.mark.mechanism("R1")
    async def test_a_failed_message_comes_again_under_the_retry_topic_after_10_s_then_30_s(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            await produce(broker, incoming("t", [b"x"], tag="created"))
            (record,) = await read_all(broker, "t")
            for times, wait_s in ((1, 10), (2, 30), (3, 60)):
                answer = await broker.send_back.send_back(
                    GROUP, record.log_offset, delay_level=0, max_reconsume_times=0
                )
                assert answer[:2] == (ResponseCode.SUCCESS, "")
                await clock.advance(wait_s - 0.001)
                assert len(await read_all(broker, retry_topic(GROUP))) == times - 1
                await clock.advance(0.001)
                record = (await read_all(broker, retry_topic(GROUP)))[-1]
                assert (record.body, record.reconsume_times) == (b"x", times)
                properties = decode_properties(record.properties)
                assert (properties[RETRY_TOPIC], properties[ORIGIN_MESSAGE_ID]) == ("t", "id-")

    @pytest.mark.mechanism("R2")
    async def test_after_the_last_try_it_is_a_dead_letter(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            await produce(broker, incoming("t", [b"x"]))
            (record,) = await read_all(broker, "t")
            send_back = partial(broker.send_back.send_back, GROUP, delay_level=1, max_reconsume_times=2)
            for _ in range(2):
                await send_back(record.log_offset)
                await clock.advance(1)
                record = (await read_all(broker, retry_topic(GROUP)))[-1]
            await send_back(record.log_offset)
            (dead,) = await read_all(broker, dlq_topic(GROUP))
            assert (dead.body, dead.reconsume_times) == (b"x", 3)
            assert len(await read_all(broker, retry_topic(GROUP))) == 2

    async def test_a_negative_level_means_dead_at_once(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            (record,) = await read_all(broker, "t")
            await broker.send_back.send_back(GROUP, record.log_offset, delay_level=-1, max_reconsume_times=0)
            assert len(await read_all(broker, dlq_topic(GROUP))) == 1

    async def test_what_still_waits_for_its_delivery_is_rejected(self) -> None:
        """As it was stored, and as it is carried over when its file of the log has to go."""
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"], delay_level=5))
            (waiting,) = await read_all(broker, SCHEDULE_TOPIC, 4)
            broker.producing.forward([waiting_copy(waiting, (5, 0), 1)], broker.time.stamp_ms())
            await broker.store.wait_stored(broker.store.log_end)
            (carried,) = await read_all(broker, TIMER_TOPIC)
            for record in (waiting, carried):
                send_back = broker.send_back.send_back(GROUP, record.log_offset, delay_level=0, max_reconsume_times=0)
                code, remark, _ = await send_back
                assert (code, "still waits for its delivery" in remark) == (ResponseCode.MESSAGE_ILLEGAL, True)

    @pytest.mark.parametrize("log_offset", [-1, 7, 1 << 40])
    async def test_a_made_up_place_is_rejected(self, log_offset: int) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"]))
            code, remark, _ = await broker.send_back.send_back(GROUP, log_offset, delay_level=0, max_reconsume_times=0)
            assert code is ResponseCode.QUERY_NOT_FOUND
            assert remark


class TestSessions:
    async def test_every_member_hears_of_joining_and_leaving_and_the_retry_topic_is_made(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            first, second = RecordingSession(), RecordingSession()
            for name, session in (("a", first), ("b", second)):
                broker.sessions.heartbeat(session, client(name, GROUP))
            assert (first.changed, second.changed) == ([GROUP, GROUP], [GROUP])
            assert broker.sessions.members.consumer_ids(GROUP) == ["a", "b"]
            assert broker.topics.get(retry_topic(GROUP)) == TopicConfig(retry_topic(GROUP), 1, 1)
            broker.sessions.ended(second, "b")
            assert first.changed == [GROUP] * 3

    async def test_the_retry_topic_of_a_group_that_never_failed_survives_a_kill(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            broker.sessions.heartbeat(RecordingSession(), client("a", GROUP))
            await clock.advance(0)
        disk.kill()
        async with running_broker(disk, clock) as broker:
            assert broker.topics.get(retry_topic(GROUP)) is not None

    async def test_a_silent_member_is_dropped_after_120_s(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            groups = client("a", GROUP)
            broker.sessions.heartbeat(RecordingSession(), groups)
            await clock.advance(120)
            assert broker.sessions.members.consumer_ids(GROUP) == ["a"]
            await clock.advance(10)
            assert broker.sessions.members.consumer_ids(GROUP) == []

    async def test_only_the_group_with_an_illegal_name_is_rejected(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            code, remark = broker.sessions.heartbeat(RecordingSession(), client("a", "no good", GROUP))
            assert code is ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert "'no good' has a character that is not allowed" in remark
            assert broker.sessions.members.consumer_ids(GROUP) == ["a"], "the others take it all the same"


class TestOffsets:
    async def test_committed_offsets_survive_a_restart(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"] * 5))
            assert broker.consumer_offsets.query(GROUP, "t", 0) is None
            assert broker.offsets.commit(GROUP, [("t", 0, Progress(4))]) == ""
        async with running_broker(disk, SimClock()) as broker:
            assert broker.consumer_offsets.query(GROUP, "t", 0) == 4

    @pytest.mark.mechanism("C22")
    async def test_they_reach_the_disk_every_5_s(self) -> None:
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, clean_stop=False) as broker:
            await produce(broker, incoming("t", [b"x"] * 5))
            broker.offsets.commit(GROUP, [("t", 0, Progress(4))])
            await clock.advance(5)
        disk.kill()
        async with running_broker(disk, SimClock()) as broker:
            assert broker.consumer_offsets.query(GROUP, "t", 0) == 4

    @pytest.mark.parametrize("offset", [("t", 0, 6), ("t", 0, -1), ("unknown", 0, 0)])
    async def test_an_offset_that_makes_no_sense_is_rejected_and_the_others_count(
        self, offset: tuple[str, int, int]
    ) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, incoming("t", [b"x"] * 5))
            with pytest.raises(RejectedError):
                broker.offsets.commit(GROUP, [("t", 0, Progress(2)), (*offset[:2], Progress(offset[2]))])
            assert list(broker.consumer_offsets.all()) == [(GROUP, "t", 0, 2)]
