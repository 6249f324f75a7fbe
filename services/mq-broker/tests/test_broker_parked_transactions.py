"""Parked transactions: rolled back for their producers, undecided for operators, and delivered once if one says so."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mq_broker.core.halves import MARK_TAG, op_batch
from mq_broker.core.rewrite import rewrite, single_record_batch
from mq_broker.core.transactions import Phase, TransactionState
from mq_broker.processor import half_messages
from mq_broker.processor.broker import Broker
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import (
    BORN_IP,
    COMMIT,
    ROLLBACK,
    STORE_ROOT,
    UNKNOW,
    asking_at_once,
    check_and_answer,
    end,
    half,
    incoming,
    join,
    let_others_in,
    park,
    produce,
    read_all,
    running_broker,
    visible,
)
from mqproto.codes import ResponseCode
from mqproto.names import CHECK_MAX_TIMES_TOPIC, OP_HALF_TOPIC
from mqproto.properties import TAGS, TRANSACTION_CHECK_TIMES, TRANSACTION_STATE, UNIQ_KEY, decode_properties
from mqproto.record import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from osenv import SeededRng, SimClock, SimDisk

OPTIONS = asking_at_once(check_times_max=3)
ENDS = {COMMIT: Phase.COMMITTED, ROLLBACK: Phase.ROLLED_BACK}
RESTARTS = ["none", "clean", "kill", "power cut", "lost state"]
Step = Callable[[Broker], Awaitable[None]]


async def across(restart: str, *steps: Step) -> None:
    """Each step on a broker that was restarted so; with "none" all of them on the same one."""
    disk, clock = SimDisk(), SimClock()
    if restart == "none":
        async with running_broker(disk, clock, options=OPTIONS) as broker:
            for step in steps:
                await step(broker)
        return
    for step in steps:
        async with running_broker(disk, clock, options=OPTIONS, clean_stop=restart == "clean") as broker:
            await step(broker)
        if restart == "power cut":
            disk.crash(SeededRng(1))
        elif restart != "clean":
            disk.kill()
        if restart == "lost state":
            for suffix in ("", ".bak"):
                disk.remove_tree(StoreLayout(STORE_ROOT).config / f"transactionOffset.json{suffix}")


async def parking(broker: Broker) -> list[dict[str, str]]:
    """The properties of what the parking topic holds."""
    return [decode_properties(record.properties) for record in await read_all(broker, CHECK_MAX_TIMES_TOPIC)]


class TestParking:
    @pytest.mark.mechanism("T10")
    async def test_after_15_answers_of_unknow_it_is_parked_and_rolled_back_for_its_producer(self) -> None:
        clock, disk = SimClock(), SimDisk()
        async with running_broker(disk, clock, options=asking_at_once()) as broker:
            join(broker)
            await produce(broker, half("t", b"x", "tx"))
            for _ in range(13):
                assert (await check_and_answer(broker, "tx")).outcome is UNKNOW
            await broker.transactions.checks.check_all()  # writes down the 13 answers, and is not answered itself
        async with running_broker(disk, clock, options=asking_at_once()) as broker:
            join(broker)
            assert (await check_and_answer(broker, "tx")).outcome is UNKNOW
            assert (await check_and_answer(broker, "tx")).outcome is ROLLBACK
            assert await visible(broker) == []
            (record,) = await read_all(broker, CHECK_MAX_TIMES_TOPIC)
            assert (record.body, decode_properties(record.properties)[TRANSACTION_CHECK_TIMES]) == (b"x", "15")
            (op,) = await read_all(broker, OP_HALF_TOPIC)
            assert decode_properties(op.properties)[TRANSACTION_STATE] == "PARKED"

    @pytest.mark.parametrize("restart", RESTARTS)
    @pytest.mark.parametrize("word", list(TransactionState))
    async def test_for_its_producer_a_parked_transaction_is_rolled_back_and_stays_undecided(
        self, word: TransactionState, restart: str
    ) -> None:
        async def begin(broker: Broker) -> None:
            await park(broker, "tx")

        async def say(broker: Broker) -> None:
            assert broker.transaction_table.all_open() == []
            ended = await end(broker, "tx", word, from_check=True)
            assert (ended.code, ended.outcome) == (ResponseCode.SUCCESS, ROLLBACK)
            assert (await end(broker, "tx", word, group="stranger")).code is ResponseCode.MESSAGE_ILLEGAL
            assert (broker.transaction_table.phase("tx"), await visible(broker)) == (Phase.PARKED, [])

        await across(restart, begin, say, say)

    async def test_a_parked_transaction_is_checked_no_more(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=OPTIONS) as broker:
            await park(broker, "tx")
            session = join(broker)
            await broker.transactions.checks.check_all()
            assert session.checks == []

    async def test_a_disk_that_is_full_parks_nothing_and_the_next_answer_does(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = SimDisk()
        async with running_broker(disk, SimClock(), options=asking_at_once(check_times_max=1)) as broker:
            join(broker)
            await produce(broker, half("t", b"x", "tx"))
            await broker.transactions.checks.check_all()

            def reject(call: str, path: object) -> None:
                if call == "pwrite" and "commitlog" in str(path):
                    raise OSError("no room")

            with monkeypatch.context() as patch:
                patch.setattr(disk, "before", reject)
                ended = await end(broker, "tx", UNKNOW, from_check=True)
            assert (ended.code, broker.transaction_table.phase("tx")) == (ResponseCode.SYSTEM_ERROR, Phase.PREPARED)
            assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is ROLLBACK
            assert broker.transaction_table.phase("tx") is Phase.PARKED


class TestDecisions:
    @pytest.mark.parametrize("restart", RESTARTS)
    @pytest.mark.parametrize("again", [COMMIT, ROLLBACK])
    @pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
    async def test_an_operator_decides_once_and_later_requests_hear_how(
        self, first: TransactionState, again: TransactionState, restart: str
    ) -> None:
        async def begin(broker: Broker) -> None:
            await park(broker, "tx")

        async def decide(broker: Broker) -> None:
            assert await broker.transactions.decide("tx", first) is ENDS[first]

        async def decide_again(broker: Broker) -> None:
            assert await broker.transactions.decide("tx", again) is ENDS[first]
            assert (await end(broker, "tx", again)).outcome is first
            assert await visible(broker) == ([b"x"] if first is COMMIT else [])

        await across(restart, begin, decide, decide_again, decide_again)

    async def test_a_decision_is_a_mark_behind_the_message_and_no_message_itself(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=OPTIONS) as broker:
            await park(broker, "a")
            await park(broker, "b")
            await broker.transactions.decide("b", COMMIT)
            await broker.transactions.decide("a", ROLLBACK)
            *_, first, second = await parking(broker)
            assert first == {TAGS: MARK_TAG, UNIQ_KEY: "b", TRANSACTION_STATE: "COMMITTED"}
            assert second == {TAGS: MARK_TAG, UNIQ_KEY: "a", TRANSACTION_STATE: "ROLLED_BACK"}
            bodies = [record.body for record in await read_all(broker, CHECK_MAX_TIMES_TOPIC)]
            assert bodies == [b"x", b"x", b"committed by an operator", b"rolled back by an operator"]
            marks = await read_all(broker, CHECK_MAX_TIMES_TOPIC, expression=MARK_TAG)
            assert [record.body for record in marks] == bodies[2:]  # the tag tells them apart without reading them

    async def test_a_client_can_neither_send_a_mark_nor_have_one_parked(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=OPTIONS) as broker:
            (outcome,) = await produce(broker, incoming(CHECK_MAX_TIMES_TOPIC, [b"x"]))
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            (outcome,) = await produce(broker, half("t", b"x", "tx", properties={TRANSACTION_STATE: "COMMITTED"}))
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            assert TRANSACTION_STATE in outcome.remark

    async def test_what_a_decision_delivers_is_what_the_producers_commit_would_have(self) -> None:
        async with running_broker(SimDisk(), SimClock(), options=OPTIONS) as broker:
            await produce(broker, half("other", b"y", "first"))  # so that the half stands at no offset 0
            await park(broker, "tx")
            (half_offset,) = {one.queue_offset for one in [broker.transaction_table.undecided("tx")] if one is not None}
            await broker.transactions.decide("tx", COMMIT)
            (record,) = await read_all(broker, "t")
            assert record.sys_flag & FLAG_TRANSACTION_MASK == FLAG_TRANSACTION_COMMIT
            assert record.prepared_transaction_offset == half_offset > 0
            assert decode_properties(record.properties) == {UNIQ_KEY: "tx", "PGROUP": "shop", TAGS: "created"}
            *_, op = await read_all(broker, OP_HALF_TOPIC)
            assert op.body == b"%d" % half_offset

    @pytest.mark.parametrize("word", [COMMIT, ROLLBACK])
    async def test_an_open_transaction_can_be_decided_too_and_is_not_parked_by_it(self, word: TransactionState) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            await produce(broker, half("t", b"x", "tx"))
            assert await broker.transactions.decide("tx", word) is ENDS[word]
            assert (await end(broker, "tx", COMMIT)).outcome is word
            assert await visible(broker) == ([b"x"] if word is COMMIT else [])
            assert await parking(broker) == []

    @pytest.mark.parametrize("parked", [True, False])
    async def test_deciding_twice_at_once_delivers_once(self, parked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        async with running_broker(SimDisk(), SimClock(), options=OPTIONS) as broker:
            if parked:
                await park(broker, "tx")
            else:
                await produce(broker, half("t", b"x", "tx"))
            let_others_in(broker, monkeypatch)
            decisions = [broker.transactions.decide("tx", COMMIT) for _ in range(4)]
            phases = await asyncio.gather(*decisions, broker.transactions.decide("tx", ROLLBACK))
            assert len(set(phases)) == 1
            assert await visible(broker) == ([b"x"] if phases[0] is Phase.COMMITTED else [])
            assert len(await parking(broker)) == 2 * parked

    async def test_the_marks_alone_tell_what_is_decided_when_the_op_messages_are_read_no_more(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(half_messages, "OUTCOMES_REMEMBERED", 0)
        disk, clock = SimDisk(), SimClock()
        async with running_broker(disk, clock, options=OPTIONS) as broker:
            for id_ in ("a", "b", "c"):
                await park(broker, id_)
            await broker.transactions.decide("a", COMMIT)
            await broker.transactions.decide("b", ROLLBACK)
        async with running_broker(disk, clock, options=OPTIONS) as broker:
            phases = [broker.transaction_table.phase(id_) for id_ in ("a", "b", "c")]
            assert phases == [Phase.COMMITTED, Phase.ROLLED_BACK, Phase.PARKED]

    async def test_an_unknown_transaction_cannot_be_decided(self) -> None:
        async with running_broker(SimDisk(), SimClock()) as broker:
            assert await broker.transactions.decide("tx", COMMIT) is None

    @pytest.mark.parametrize("restart", ["clean", "power cut", "lost state"])
    async def test_what_earlier_versions_have_parked_is_undecided(self, restart: str) -> None:
        async def begin(broker: Broker) -> None:
            """As they did: the parked message and an op message that says ROLLED_BACK."""
            await produce(broker, half("t", b"x", "tx"))
            one = broker.transaction_table.undecided("tx")
            assert one is not None
            record = await broker.store.reader.read_record(one.log_offset)
            data = rewrite(record, CHECK_MAX_TIMES_TOPIC, 0, decode_properties(record.properties), 0)
            op = op_batch(one, Phase.ROLLED_BACK, store_ms=1, born_ip=BORN_IP)
            broker.store.put([single_record_batch(CHECK_MAX_TIMES_TOPIC, 0, data, 0), op], broker.time.stamp_ms())
            broker.transaction_table.closed("tx", Phase.ROLLED_BACK)
            await broker.store.flusher.flush()

        async def decide(broker: Broker) -> None:
            assert broker.transaction_table.phase("tx") is Phase.PARKED
            assert await broker.transactions.decide("tx", COMMIT) is Phase.COMMITTED
            assert await visible(broker) == [b"x"]

        async def look(broker: Broker) -> None:
            assert broker.transaction_table.phase("tx") is Phase.COMMITTED
            assert await visible(broker) == [b"x"]

        await across(restart, begin, decide, look)


@pytest.mark.mechanism("T10")
@pytest.mark.parametrize("seed", range(60))
async def test_whatever_is_cut_off_a_parked_message_is_delivered_if_and_only_if_its_commit_was_stored_and_once(
    seed: int,
) -> None:
    rng, disk, clock = SeededRng(seed), SimDisk(), SimClock()
    answered: dict[str, Phase] = {}
    wanted: dict[str, TransactionState] = {}
    number = 0
    for _ in range(3):
        async with running_broker(disk, clock, options=asking_at_once(check_times_max=1), clean_stop=False) as broker:
            for id_, phase in answered.items():  # what was answered before the crash is still so
                assert await broker.transactions.decide(id_, rng.choice([COMMIT, ROLLBACK])) is phase
            undecided = [id_ for id_ in wanted if id_ not in answered]
            for id_ in undecided:  # of those whose decision was cut off, whole or not at all
                seen = (await visible(broker)).count(id_.encode())
                assert seen == (broker.transaction_table.phase(id_) is Phase.COMMITTED)
            for _ in range(rng.randrange(1, 6)):
                number += 1
                id_ = f"tx-{number}"
                await park(broker, id_, body=id_.encode())
                wanted[id_] = rng.choice([COMMIT, ROLLBACK])
                if rng.random() < 0.5:
                    phase_now = await broker.transactions.decide(id_, wanted[id_])
                    assert phase_now is ENDS[wanted[id_]]
                    answered[id_] = phase_now
            if rng.random() < 0.3:
                await broker.store.checkpoint()
            for id_ in [id_ for id_ in wanted if id_ not in answered][:2]:  # some that may or may not reach the disk
                task = asyncio.create_task(broker.transactions.decide(id_, wanted[id_]))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        disk.crash(rng)
    async with running_broker(disk, clock, options=OPTIONS) as broker:
        for id_, word in wanted.items():
            await broker.transactions.decide(id_, word)
        committed = sorted(id_ for id_, word in wanted.items() if word is COMMIT)
        assert sorted(body.decode() for body in await visible(broker)) == committed


@pytest.mark.parametrize("word", [COMMIT, ROLLBACK])
async def test_of_a_torn_decision_either_nothing_is_left_or_it_is_finished(word: TransactionState) -> None:
    """Every state that a power cut may leave of the one write: message, op message and mark."""
    found: set[Phase | None] = set()
    for padding in range(0, 512, 96):
        disk, clock, disks = SimDisk(), SimClock(), list[SimDisk]()
        async with running_broker(disk, clock, options=OPTIONS, clean_stop=False) as broker:
            await produce(broker, incoming("other", [b"p" * (1 + padding)]))
            await park(broker, "tx", body=b"m" * 200)

            def take(call: str, path: object) -> None:
                if call == "sync_data" and "commitlog" in str(path) and not disks:  # noqa: B023 - called in this round
                    disks.extend(disk.lost_states(SeededRng(1), exhaustive_units_max=6, samples=40))  # noqa: B023

            disk.before = take
            assert await broker.transactions.decide("tx", word) is ENDS[word]
        for left in disks:
            left.locks.clear()
            async with running_broker(left, clock, options=OPTIONS, clean_stop=False) as broker:
                phase, seen = broker.transaction_table.phase("tx"), await visible(broker)
                assert len(seen) == (phase is Phase.COMMITTED)
                found.add(phase)
                assert await broker.transactions.decide("tx", COMMIT) in {Phase.COMMITTED, phase}
            left.kill()
            async with running_broker(left, clock, options=OPTIONS) as broker:
                assert len(await visible(broker)) == (broker.transaction_table.phase("tx") is Phase.COMMITTED)
    assert found == {Phase.PARKED, ENDS[word]}


async def test_of_a_torn_parking_either_nothing_is_left_or_it_is_parked_and_once() -> None:
    found: set[Phase | None] = set()
    for padding in range(0, 512, 96):
        disk, clock, disks = SimDisk(), SimClock(), list[SimDisk]()
        async with running_broker(disk, clock, options=OPTIONS, clean_stop=False) as broker:
            await produce(broker, incoming("other", [b"p" * (1 + padding)]))
            join(broker)
            await produce(broker, half("t", b"m" * 200, "tx"))
            for _ in range(2):
                await check_and_answer(broker, "tx")
            await broker.transactions.checks.check_all()
            await broker.store.flusher.flush()

            def take(call: str, path: object) -> None:
                if call == "sync_data" and "commitlog" in str(path) and not disks:  # noqa: B023 - called in this round
                    disks.extend(disk.lost_states(SeededRng(1), exhaustive_units_max=6, samples=40))  # noqa: B023

            disk.before = take
            assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is ROLLBACK
        for left in disks:
            left.locks.clear()
            async with running_broker(left, clock, options=OPTIONS, clean_stop=False) as broker:
                found.add(broker.transaction_table.phase("tx"))
                join(broker)
                for _ in range(3):
                    await check_and_answer(broker, "tx")
                assert broker.transaction_table.phase("tx") is Phase.PARKED
                assert len(await read_all(broker, CHECK_MAX_TIMES_TOPIC)) == 1
            left.kill()
            async with running_broker(left, clock, options=OPTIONS) as broker:
                assert broker.transaction_table.all_open() == []
                assert broker.transaction_table.phase("tx") is Phase.PARKED
    assert found == {Phase.PREPARED, Phase.PARKED}
