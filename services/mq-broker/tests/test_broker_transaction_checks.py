"""Checks of open transactions: the members that are asked, when, how often, and what counts as an answer."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from mq_broker.core import transactions
from mq_broker.core.limits import RetentionOptions
from mq_broker.core.transactions import Phase
from mq_broker.processor import half_messages
from mq_broker.processor.broker import Broker
from mq_broker.processor.half_messages import CHECKS_AT_ONCE
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import (
    COMMIT,
    ROLLBACK,
    STORE_ROOT,
    UNKNOW,
    RecordingSession,
    asking_at_once,
    beat,
    broker_options,
    check_and_answer,
    end,
    flush_and_index,
    half,
    join,
    let_others_in,
    produce,
    read_all,
    running_broker,
    visible,
)
from mqproto.codes import ResponseCode
from mqproto.names import CHECK_MAX_TIMES_TOPIC, HALF_TOPIC
from mqproto.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    TRAN_MSG,
    TRANSACTION_CHECK_TIMES,
    decode_properties,
)
from osenv import SimClock, SimDisk

CHECK_INTERVAL_S = 60
LAYOUT = StoreLayout(STORE_ROOT)


async def one_check_interval(broker: Broker, clock: SimClock, session: RecordingSession) -> None:
    for _ in range(2):
        beat(broker, session)
        await clock.advance(CHECK_INTERVAL_S / 2)


def asked(session: RecordingSession) -> list[str]:
    return [id_ for _, id_, _ in session.checks]


def check_times(broker: Broker, id_: str = "tx") -> int:
    one = broker.transaction_table.undecided(id_)
    assert one is not None
    return one.check_times


class TestWhen:
    @pytest.mark.mechanism("T8", "T12")
    async def test_an_active_member_is_asked_every_minute_after_the_immunity(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "old"))
            await clock.advance(CHECK_INTERVAL_S - 5.9)
            await produce(broker, half("t", b"y", "young"))
            await clock.advance(5.9)
            ((group, id_, record),) = session.checks
            assert (group, id_, record.topic, record.body) == ("shop", "old", "t", b"x")
            assert TRAN_MSG not in decode_properties(record.properties)
            await clock.advance(CHECK_INTERVAL_S)
            assert asked(session)[1:] == ["old", "young"]

    @pytest.mark.mechanism("T9")
    async def test_a_message_may_have_an_immunity_of_its_own_which_every_copy_keeps_and_no_consumer_gets(self) -> None:
        clock, disk = SimClock(), SimDisk()
        async with running_broker(disk, clock) as broker:
            await produce(broker, half("t", b"x", "tx", properties={CHECK_IMMUNITY_TIME_IN_SECONDS: "150"}))
        async with running_broker(disk, clock) as broker:
            session = join(broker)
            for wanted in (0, 0, 1, 2):
                await one_check_interval(broker, clock, session)
                assert len(session.checks) == wanted
            for record in await read_all(broker, HALF_TOPIC):
                assert decode_properties(record.properties)[CHECK_IMMUNITY_TIME_IN_SECONDS] == "150"
            await end(broker, "tx", COMMIT)
            records = [record for _, _, record in session.checks] + await read_all(broker, "t")
            assert all(CHECK_IMMUNITY_TIME_IN_SECONDS not in decode_properties(one.properties) for one in records)

    @pytest.mark.parametrize("value", ["", "-1", "1.5", "x", "\N{SUPERSCRIPT TWO}", "3456001", "9" * 40])
    async def test_an_immunity_that_makes_no_sense_is_rejected_with_a_sentence(self, value: str) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            odd = half("t", b"x", "tx", properties={CHECK_IMMUNITY_TIME_IN_SECONDS: value})
            (outcome,) = await produce(broker, odd)
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            assert outcome.remark.endswith("allowed are whole seconds from 0 to 3,456,000")
            longest = half("t", b"x", "tx", properties={CHECK_IMMUNITY_TIME_IN_SECONDS: "3456000"})
            assert (await produce(broker, longest))[0].code is ResponseCode.SUCCESS

    async def test_another_interval_and_another_immunity_are_followed_while_the_broker_runs(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "tx"))
            options = asking_at_once(check_interval_ms=1_000, check_times_max=2)
            broker.reconfigure(options, RetentionOptions())
            await clock.advance(CHECK_INTERVAL_S)  # the pause that had begun
            before = len(session.checks)
            await clock.advance(5)
            assert len(session.checks) == before + 5
            assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is UNKNOW
            await clock.advance(1)
            assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is ROLLBACK


class TestWhatCounts:
    @pytest.mark.mechanism("T11")
    async def test_the_half_is_written_again_with_its_counter_before_it_is_checked(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "tx"))
            for times in range(1, 4):
                await one_check_interval(broker, clock, session)
                copies = await read_all(broker, HALF_TOPIC)
                assert len(copies) == times + 1
                await end(broker, "tx", UNKNOW, from_check=True)
            assert decode_properties(copies[-1].properties)[TRANSACTION_CHECK_TIMES] == "2"
            assert (await end(broker, "tx", COMMIT, from_check=True)).outcome is COMMIT
            assert await visible(broker) == [b"x"]

    @pytest.mark.mechanism("T10")
    async def test_an_unknow_without_a_check_does_not_count(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=asking_at_once()) as broker:
            join(broker)
            await produce(broker, half("t", b"x", "tx"))
            for _ in range(20):
                assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is UNKNOW
            assert check_times(broker) == 0
            await broker.transactions.checks.check_all()
            await end(broker, "tx", UNKNOW)
            assert check_times(broker) == 0  # the producer's own word is no answer
            for _ in range(20):
                assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is UNKNOW
            assert check_times(broker) == 1

    async def test_two_answers_at_once_count_as_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with running_broker(SimDisk(), SimClock(), options=asking_at_once(check_times_max=3)) as broker:
            join(broker)
            await produce(broker, half("t", b"x", "tx"))
            let_others_in(broker, monkeypatch)
            for wanted in (1, 2):
                await broker.transactions.checks.check_all()
                await asyncio.gather(*(end(broker, "tx", UNKNOW, from_check=True) for _ in range(5)))
                assert check_times(broker) == wanted
            await broker.transactions.checks.check_all()
            answers = await asyncio.gather(*(end(broker, "tx", UNKNOW, from_check=True) for _ in range(5)))
            assert {answer.outcome for answer in answers} == {ROLLBACK}
            assert len(await read_all(broker, CHECK_MAX_TIMES_TOPIC)) == 1

    async def test_a_check_that_is_not_answered_does_not_count(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=asking_at_once(check_times_max=2)) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "tx"))
            for _ in range(10):
                await broker.transactions.checks.check_all()
            assert len(session.checks) == 10
            assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is UNKNOW
            assert check_times(broker) == 1

    async def test_the_answer_of_a_member_that_has_died_does_not_count(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=asking_at_once()) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "tx"))
            await broker.transactions.checks.check_all()
            broker.sessions.ended(session, "client")
            join(broker, client_id="another")
            await end(broker, "tx", UNKNOW, from_check=True)
            assert check_times(broker) == 0
            await check_and_answer(broker, "tx")
            assert check_times(broker) == 1

    async def test_after_a_restart_no_check_is_under_way(self) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), options=asking_at_once()) as broker:
            join(broker)
            await produce(broker, half("t", b"x", "tx"))
            await broker.transactions.checks.check_all()
        async with running_broker(disk, SimClock(), options=asking_at_once()) as broker:
            join(broker)
            await end(broker, "tx", UNKNOW, from_check=True)
            assert check_times(broker) == 0

    async def test_the_outcome_that_a_check_brings_ends_the_transaction(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=asking_at_once()) as broker:
            join(broker)
            for id_, outcome in (("a", COMMIT), ("b", ROLLBACK)):
                await produce(broker, half("t", id_.encode(), id_))
                assert (await check_and_answer(broker, id_, outcome)).outcome is outcome
            assert await visible(broker) == [b"a"]

    @pytest.mark.mechanism("T10")
    async def test_an_hour_without_members_rolls_nothing_back(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            join(broker, group="others")
            await produce(broker, half("t", b"x", "tx"))
            for _ in range(60):
                await clock.advance(60)
                await end(broker, "tx", UNKNOW, from_check=True)
            assert len(await read_all(broker, HALF_TOPIC)) == 1
            assert (await end(broker, "tx", COMMIT)).outcome is COMMIT


class TestRounds:
    @pytest.mark.mechanism("T8")
    async def test_a_half_that_cannot_be_read_is_passed_over_and_the_round_goes_on(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock()) as broker:
            for number in range(4):
                await produce(broker, half("t", b"x", f"tx-{number}"))
        async with running_broker(disk, SimClock(), options=asking_at_once()) as broker:
            session = join(broker)
            for id_ in ("tx-0", "tx-2"):
                one = broker.transaction_table.open_half(id_)
                assert one is not None
                disk.open(LAYOUT.commit_log / ("0" * 20)).pwrite(b"\xff\xff", one.log_offset + 90)
            for times in (1, 2):
                await broker.transactions.checks.check_all()
                assert sorted(asked(session)) == sorted(["tx-1", "tx-3"] * times)
            assert "transaction tx-0 cannot be checked" in caplog.text
            assert (await end(broker, "tx-0", ROLLBACK)).outcome is ROLLBACK  # what cannot be read can be given up

    async def test_a_half_that_cannot_be_written_again_is_not_asked_for_and_holds_up_no_other(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), options=asking_at_once()) as broker:
            session = join(broker)
            for number in range(3):
                await produce(broker, half("t", b"body %d" % number, f"tx-{number}"))
            rejections = iter([OSError(errno.ENOSPC, "no room")])

            def reject_once(call: str, path: Path) -> None:
                if call == "pwrite" and path.parent == LAYOUT.commit_log and (error := next(rejections, None)):
                    raise error

            monkeypatch.setattr(disk, "before", reject_once)
            await broker.transactions.checks.check_all()
            assert len(session.checks) == 2
            await broker.transactions.checks.check_all()
            assert sorted(asked(session)[2:]) == ["tx-0", "tx-1", "tx-2"]
            assert broker.store.queue_end(HALF_TOPIC, 0) == 3 + len(session.checks)

    async def test_a_full_disk_is_asked_for_nothing_and_the_next_round_tries_again(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        options = asking_at_once()
        async with running_broker(SimDisk(), SimClock(), options=options, work=flush_and_index) as broker:
            session = join(broker)
            for number in range(20):
                await produce(broker, half("t", b"x", f"tx-{number}"))
            full = RetentionOptions(normal_share=0, forced_share=0, reject_share=0)
            broker.reconfigure(options, full)
            await broker.retention.round()
            caplog.clear()
            await broker.transactions.checks.check_all()
            assert session.checks == []
            assert broker.store.queue_end(HALF_TOPIC, 0) == 20
            assert caplog.text.count("the next round tries again") == 1
            broker.reconfigure(options, RetentionOptions())
            await broker.retention.round()
            await broker.transactions.checks.check_all()
            assert len(session.checks) == 20

    @pytest.mark.mechanism("T8")
    async def test_producers_have_their_turn_while_many_halves_are_checked(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=asking_at_once()) as broker:
            session = join(broker)
            for number in range(200):
                await produce(broker, half("t", b"x", f"tx-{number}"))
            seen: list[int] = []
            round_ = asyncio.create_task(broker.transactions.checks.check_all())
            while not round_.done():
                await asyncio.sleep(0)
                seen.append(len(session.checks))
            assert max(after - before for before, after in zip([0, *seen], seen, strict=False)) <= CHECKS_AT_ONCE
            assert len(session.checks) == 200

    async def test_a_round_looks_at_many_halves_in_stretches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("mq_broker.processor.half_messages.SLOTS_AT_ONCE", 8)
        monkeypatch.setattr(half_messages, "SLOTS_AT_ONCE", 8)
        async with running_broker(SimDisk(), SimClock(), options=asking_at_once()) as broker:
            for number in range(100):
                await produce(broker, half("t", b"x", f"tx-{number}"))
            turns = 0
            round_ = asyncio.create_task(broker.transactions.checks.check_all())  # there are no members
            while not round_.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns >= 100 // 8
            session = join(broker)
            await broker.transactions.checks.check_all()
            assert sorted(asked(session)) == sorted(f"tx-{number}" for number in range(100))

    async def test_a_member_that_owes_answers_is_passed_over_and_the_round_comes_back_to_what_is_left(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(transactions, "CHECKS_UNANSWERED_MAX", 4)
        monkeypatch.setattr("mq_broker.processor.half_messages.SLOTS_AT_ONCE", 4)
        clock = SimClock()
        async with running_broker(SimDisk(), clock, options=asking_at_once(), work=flush_and_index) as broker:
            slow, quick = join(broker), join(broker, group="others", client_id="quick")
            for number in range(12):
                await produce(broker, half("t", b"x", f"slow-{number}"))
                await produce(broker, half("t", b"x", f"quick-{number}", group="others"))
                await end(broker, f"quick-{number}", ROLLBACK, group="others") if number % 2 else None
            answering = asyncio.create_task(broker.transactions.checks.check_all())
            await clock.advance(0)
            assert (len(slow.checks), len(quick.checks)) == (4, 4)
            for id_ in asked(slow):
                await end(broker, id_, UNKNOW, from_check=True)
            await clock.advance(2)
            assert len(slow.checks) == 8  # four answers, four checks more
            await clock.advance(CHECK_INTERVAL_S)
            await answering
            assert len(set(asked(slow))) == len(slow.checks) == 8
            second = asyncio.create_task(broker.transactions.checks.check_all())
            await clock.advance(0)
            assert set(asked(slow)[8:]) & {f"slow-{number}" for number in range(8, 12)}  # begins with what is left
            second.cancel()
            with suppress(asyncio.CancelledError):
                await second

    async def test_what_was_ended_while_it_was_read_is_not_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async with running_broker(SimDisk(), SimClock(), options=asking_at_once()) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "tx"))
            read = broker.store.reader.read_record

            async def read_late(log_offset: int) -> object:
                record = await read(log_offset)
                monkeypatch.setattr(broker.store.reader, "read_record", read)
                await end(broker, "tx", COMMIT)
                return record

            monkeypatch.setattr(broker.store.reader, "read_record", read_late)
            await broker.transactions.checks.check_all()
            assert session.checks == []
            assert await visible(broker) == [b"x"]
            assert broker.transaction_table.phase("tx") is Phase.COMMITTED


@pytest.mark.parametrize("key", ["check_interval_ms", "immunity_ms", "check_times_max"])
def test_options_are_rocketmqs_by_default(key: str) -> None:
    wanted: Callable[[str], int] = {
        "check_interval_ms": 60_000,
        "immunity_ms": 6_000,
        "check_times_max": 15,
    }.__getitem__
    assert getattr(replace(broker_options()).transactions, key) == wanted(key)
