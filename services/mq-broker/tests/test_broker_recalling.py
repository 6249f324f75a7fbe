"""Messages taken back, or given another time: each answer is true, and stays true."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from mq_broker.core.limits import RejectedError
from mq_broker.core.topics import TIMER
from mq_broker.processor.recalling import NewTime, RecallAnswer
from mq_broker.testing import (
    bodies,
    delivering_broker,
    half,
    in_ten_seconds,
    keyed,
    outcomes,
    produce,
    read_all,
    store_options,
    waiting,
)
from mq_broker.testing_closely import ThreadedDisk
from mqproto.codes import RecallOutcome, ResponseCode
from mqproto.names import retry_topic
from mqproto.properties import DELAY_MS_MAX
from osenv import SeededRng, SimClock, SimDisk
from osenv.sim_clock import settle

START_MS = 1_700_000_000_000
REMOVED, RESCHEDULED, DELIVERED = RecallOutcome.REMOVED, RecallOutcome.RESCHEDULED, RecallOutcome.ALREADY_DELIVERED
IN_A_MINUTE = NewTime(delay_ms=60_000)


@pytest.mark.parametrize("kind", ["level", "timer"])
@pytest.mark.parametrize("key", ["k", "m"], ids=["business key", "message id"])
class TestOutcomes:
    @pytest.mark.mechanism("D7")
    async def test_a_removed_message_never_comes_and_is_told_so_again(self, kind: str, key: str) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, in_ten_seconds(kind))
            for _ in range(2):
                assert outcomes(await broker.recalling.recall("t", key)) == {"m": REMOVED}
                assert waiting(broker) == {}
            await clock.advance(3_600)
            assert await bodies(broker) == []
            assert outcomes(await broker.recalling.recall("t", key, IN_A_MINUTE)) == {"m": REMOVED}
            await clock.advance(3_600)
            assert await bodies(broker) == []

    async def test_what_was_delivered_is_told_so(self, kind: str, key: str) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, in_ten_seconds(kind))
            await clock.advance(10)
            for new_time in (None, IN_A_MINUTE):
                assert outcomes(await broker.recalling.recall("t", key, new_time)) == {"m": DELIVERED}
            await clock.advance(3_600)
            assert await bodies(broker) == [b"x"]

    @pytest.mark.parametrize(
        ("new_time", "due_ms"),
        [
            (NewTime(delay_ms=2_000), START_MS + 3_000),
            (NewTime(delay_ms=50_000), START_MS + 51_000),
            (NewTime(deliver_ms=START_MS + 1_234), START_MS + 1_234),
            (NewTime(deliver_ms=0), START_MS + 1_000),
            (NewTime(delay_ms=0), START_MS + 1_000),
            (NewTime(delay_ms=DELAY_MS_MAX), START_MS + 1_000 + DELAY_MS_MAX),
        ],
    )
    async def test_a_rescheduled_message_comes_at_its_new_time_and_once(
        self, kind: str, key: str, new_time: NewTime, due_ms: int
    ) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, in_ten_seconds(kind))
            await clock.advance(1)
            answer = await broker.recalling.recall("t", key, new_time)
            assert [(one.outcome, one.due_ms) for one in answer.messages] == [(RESCHEDULED, due_ms)]
            if due_ms > START_MS + 1_000:
                assert waiting(broker) == {TIMER: 1}
                await clock.advance((due_ms - START_MS - 1_000) / 1_000 - 0.001)
                assert await bodies(broker) == []
            await clock.advance(0.001)
            assert [record.store_timestamp_ms for record in await read_all(broker, "t")] == [due_ms]
            await clock.advance(3_600)
            assert await bodies(broker) == [b"x"]
            assert outcomes(await broker.recalling.recall("t", key)) == {"m": DELIVERED}

    async def test_a_rescheduled_message_can_be_rescheduled_and_removed(self, kind: str, key: str) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, in_ten_seconds(kind))
            for delay_ms in (60_000, 5_000, 20_000):
                assert outcomes(await broker.recalling.recall("t", key, NewTime(delay_ms=delay_ms))) == {
                    "m": RESCHEDULED
                }
                assert waiting(broker) == {TIMER: 1}
            assert outcomes(await broker.recalling.recall("t", key)) == {"m": REMOVED}
            await clock.advance(3_600)
            assert await bodies(broker) == []

    @pytest.mark.parametrize("stop", ["clean", "kill", "power cut"])
    async def test_answers_hold_across_a_restart(self, kind: str, key: str, stop: str) -> None:
        disk, clock = SimDisk(), SimClock(START_MS)
        async with delivering_broker(disk, clock, clean_stop=stop == "clean") as broker:
            await produce(broker, in_ten_seconds(kind, "m"), in_ten_seconds(kind, "other", key="o"))
            assert outcomes(await broker.recalling.recall("t", key)) == {"m": REMOVED}
            assert outcomes(await broker.recalling.recall("t", "o", IN_A_MINUTE)) == {"other": RESCHEDULED}
        if stop == "power cut":
            disk.crash(SeededRng(1))
        disk.kill()
        async with delivering_broker(disk, clock) as broker:
            await settle()  # the index follows
            assert waiting(broker) == {TIMER: 1}
            assert outcomes(await broker.recalling.recall("t", key)) == {"m": REMOVED}
            await clock.advance(59.999)
            assert await bodies(broker) == []
            await clock.advance(0.001)
            assert await bodies(broker) == [b"x"]
            assert outcomes(await broker.recalling.recall("t", "o")) == {"other": DELIVERED}


class TestKeys:
    async def test_all_messages_with_the_key_are_answered_each_for_itself(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, in_ten_seconds("timer", "delivered"))
            await clock.advance(10)
            await produce(
                broker,
                in_ten_seconds("level", "level"),
                in_ten_seconds("timer", "removed"),
                in_ten_seconds("timer", "timer"),
            )
            assert outcomes(await broker.recalling.recall("t", "removed")) == {"removed": REMOVED}
            wanted = {"delivered": DELIVERED, "level": REMOVED, "removed": REMOVED, "timer": REMOVED}
            assert outcomes(await broker.recalling.recall("t", "k")) == wanted
            await clock.advance(100)
            assert len(await bodies(broker)) == 1

    @pytest.mark.parametrize(("topic", "key"), [("t", "unknown"), ("u", "k"), ("t", "plain"), ("t", "half")])
    async def test_what_never_waited_here_under_this_topic_and_key_is_unknown(self, topic: str, key: str) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(
                broker, in_ten_seconds("level"), in_ten_seconds("timer", "n"), keyed("t", key="plain", unique_id="p")
            )
            await produce(broker, half("t", b"x", "half"))
            await settle()
            answer = await broker.recalling.recall(topic, key)
            assert (answer.messages, answer.truncated) == ([], False)
            assert sum(waiting(broker).values()) == 2

    async def test_a_message_of_another_topic_with_the_same_key_stays(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, in_ten_seconds("level"), keyed("u", key="k", unique_id="u", delay_level=3))
            assert outcomes(await broker.recalling.recall("t", "k")) == {"m": REMOVED}
            await clock.advance(10)
            assert (await bodies(broker), await bodies(broker, "u")) == ([], [b"x"])

    async def test_a_retry_that_waits_for_its_group_is_not_taken_back(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, in_ten_seconds("timer"))
            await clock.advance(10)
            (record,) = await read_all(broker, "t")
            code, *_ = await broker.send_back.send_back("g", record.log_offset, delay_level=3, max_reconsume_times=16)
            assert code is ResponseCode.SUCCESS
            assert outcomes(await broker.recalling.recall("t", "k")) == {"m": DELIVERED}
            await clock.advance(10)
            assert await bodies(broker, retry_topic("g")) == [b"x"]

    async def test_messages_without_an_id_are_named_after_their_places(self) -> None:
        async with delivering_broker(SimDisk(), SimClock(START_MS)) as broker:
            await produce(broker, in_ten_seconds("timer", ""), in_ten_seconds("timer", ""))
            assert outcomes(await broker.recalling.recall("t", "k")) == {"-1:0": REMOVED, "-1:1": REMOVED}
            assert outcomes(await broker.recalling.recall("t", "k")) == {"-1:0": REMOVED, "-1:1": REMOVED}


class TestTogether:
    """Whatever runs at once: each message has one fate, and each answer names it."""

    @pytest.mark.parametrize("disk", [SimDisk, ThreadedDisk])
    async def test_two_who_remove_and_one_who_reschedules_agree(self, disk: type[SimDisk]) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(disk(), clock) as broker:
            await produce(broker, *[in_ten_seconds("timer", f"m{number}") for number in range(20)])
            recall = broker.recalling.recall
            answers = await asyncio.gather(recall("t", "k"), recall("t", "k", IN_A_MINUTE), recall("t", "m7"))
            assert {outcome for answer in answers for outcome in outcomes(answer).values()} == {REMOVED}
            assert [len(answer.messages) for answer in answers] == [20, 20, 1]
            await clock.advance(100)
            assert await bodies(broker) == []

    async def test_a_recall_that_begins_at_any_moment_of_another_one_agrees_with_it(self) -> None:
        async with delivering_broker(ThreadedDisk(), SimClock(START_MS)) as broker:
            for rounds in range(40):
                for times in ((None, IN_A_MINUTE), (IN_A_MINUTE, None)):
                    key = f"k{rounds}-{times[0] is None}"
                    await produce(broker, in_ten_seconds("timer", key, key="k"))
                    first = asyncio.create_task(broker.recalling.recall("t", key, times[0]))
                    for _ in range(rounds):
                        await asyncio.sleep(0)
                    second = outcomes(await broker.recalling.recall("t", key, times[1]))
                    both = outcomes(await first)[key], second[key]
                    assert both in {(REMOVED, REMOVED), (RESCHEDULED, REMOVED), (REMOVED, RESCHEDULED)}
                    assert waiting(broker) == {}

    @pytest.mark.parametrize("times", [(IN_A_MINUTE, IN_A_MINUTE), (IN_A_MINUTE, None), (None, IN_A_MINUTE)])
    async def test_recalls_by_different_keys_of_one_message_agree(self, times: tuple[NewTime | None, ...]) -> None:
        async with delivering_broker(ThreadedDisk(), SimClock(START_MS)) as broker:
            for rounds in range(40):
                id_, key = f"m{rounds}", f"k{rounds}"
                await produce(broker, in_ten_seconds("timer", id_, key=key))
                first = asyncio.create_task(broker.recalling.recall("t", key, times[0]))
                for _ in range(rounds):
                    await asyncio.sleep(0)
                second = outcomes(await broker.recalling.recall("t", id_, times[1]))
                assert DELIVERED not in {outcomes(await first)[id_], second[id_]}

    async def test_what_is_sent_while_a_recall_is_at_work_is_not_its_concern(self) -> None:
        async with delivering_broker(ThreadedDisk(), SimClock(START_MS)) as broker:
            await produce(broker, in_ten_seconds("timer", "before"))
            recalling = asyncio.create_task(broker.recalling.recall("t", "k"))
            await asyncio.sleep(0)
            await produce(broker, in_ten_seconds("timer", "meanwhile"))
            assert outcomes(await recalling) == {"before": REMOVED}
            assert waiting(broker) == {TIMER: 1}

    @pytest.mark.parametrize("kind", ["level", "timer"])
    @pytest.mark.parametrize("new_time", [None, IN_A_MINUTE])
    @pytest.mark.parametrize("disk", [SimDisk, ThreadedDisk])
    async def test_a_recall_while_messages_come_due_splits_them(
        self, kind: str, new_time: NewTime | None, disk: type[SimDisk]
    ) -> None:
        clock, count = SimClock(START_MS), 300
        async with delivering_broker(disk(), clock) as broker:
            for number in range(count):
                await produce(broker, in_ten_seconds(kind, f"m{number}"))
            answers: list[RecallAnswer] = []

            async def recall() -> None:
                while not await bodies(broker):  # noqa: ASYNC110 - the rounds of the event loop are what counts
                    await asyncio.sleep(0)
                answers.append(await broker.recalling.recall("t", "k", new_time))

            recalling = asyncio.create_task(recall())
            await clock.advance(10)
            await recalling
            await settle()
            fates = outcomes(answers[0])
            delivered = [id_ for id_, outcome in fates.items() if outcome is DELIVERED]
            assert len(fates) == count
            assert 0 < len(delivered) < count
            assert len(await bodies(broker)) == len(delivered)
            await clock.advance(60)
            assert len(await bodies(broker)) == (count if new_time else len(delivered))


class TestRejections:
    @pytest.mark.parametrize(
        ("topic", "key", "new_time", "sentence"),
        [
            ("", "k", None, "names a topic and a key"),
            ("t", "", None, "names a topic and a key"),
            ("t", "k", NewTime(), "0 or more"),
            ("t", "k", NewTime(delay_ms=-1), "0 or more"),
            ("t", "k", NewTime(deliver_ms=-1), "0 or more"),
            ("t", "k", NewTime(delay_ms=DELAY_MS_MAX + 1), "40 days"),
            ("t", "k", NewTime(deliver_ms=START_MS + DELAY_MS_MAX + 1), "40 days"),
        ],
    )
    async def test_what_makes_no_sense_is_rejected(
        self, topic: str, key: str, new_time: NewTime | None, sentence: str
    ) -> None:
        async with delivering_broker(SimDisk(), SimClock(START_MS)) as broker:
            await produce(broker, in_ten_seconds("timer"))
            with pytest.raises(RejectedError, match=sentence) as rejected:
                await broker.recalling.recall(topic, key, new_time)
            assert rejected.value.code is ResponseCode.MESSAGE_ILLEGAL
            assert waiting(broker) == {TIMER: 1}

    async def test_a_broker_without_an_index_says_so(self) -> None:
        store = replace(store_options(), index_enabled=False)
        async with delivering_broker(SimDisk(), SimClock(START_MS), store=store) as broker:
            with pytest.raises(RejectedError, match="messageIndexEnable=false") as rejected:
                await broker.recalling.recall("t", "k")
            assert rejected.value.code is ResponseCode.MESSAGE_ILLEGAL

    async def test_a_broker_whose_index_is_behind_is_busy_and_has_done_nothing(self) -> None:
        async with delivering_broker(SimDisk(), SimClock(START_MS)) as broker:
            await produce(broker, in_ten_seconds("timer"))

            async def stays_behind() -> bool:
                return False

            broker.store.index.catch_up = stays_behind  # type: ignore[method-assign]
            broker.store.index.indexed_end = 0
            with pytest.raises(RejectedError, match="behind the log") as rejected:
                await broker.recalling.recall("t", "k")
            assert rejected.value.code is ResponseCode.SYSTEM_BUSY
            assert waiting(broker) == {TIMER: 1}

    async def test_a_full_disk_rejects_with_a_sentence_and_the_message_comes(self) -> None:
        clock = SimClock(START_MS)
        async with delivering_broker(SimDisk(), clock) as broker:
            await produce(broker, in_ten_seconds("timer"))
            for new_time in (None, IN_A_MINUTE):
                broker.store.gate.measured(0.95)
                with pytest.raises(RejectedError, match="full") as rejected:
                    await broker.recalling.recall("t", "k", new_time)
                assert rejected.value.code is ResponseCode.SYSTEM_ERROR
            broker.store.gate.measured(0.5)
            await clock.advance(10)
            assert await bodies(broker) == [b"x"]

    async def test_a_fenced_store_does_not_say_what_became_of_it(self) -> None:
        async with delivering_broker(SimDisk(), SimClock(START_MS)) as broker:
            await produce(broker, in_ten_seconds("timer"))
            broker.store.fence(OSError(5, "for this test"))
            with pytest.raises(RejectedError) as rejected:
                await broker.recalling.recall("t", "k")
            assert rejected.value.code is ResponseCode.SERVICE_NOT_AVAILABLE
