"""Transactions: visible if and only if they were committed, whatever dies in between."""

from __future__ import annotations

import itertools

import pytest

from mq_broker.core.transactions import (
    OUTCOMES,
    TRANSITIONS,
    Action,
    OpenHalf,
    Phase,
    TransactionOptions,
    TransactionState,
    TransactionTable,
)
from mq_broker.processor.broker import Broker, BrokerOptions
from mq_broker.processor.transactions import Ended
from mq_broker.store.layout import StoreLayout
from mq_broker.testing import (
    STORE_ROOT,
    RecordingSession,
    broker_options,
    client,
    half,
    incoming,
    produce,
    read_all,
    running_broker,
)
from mqproto.codes import ResponseCode
from mqproto.names import CHECK_MAX_TIMES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from mqproto.properties import PGROUP, REAL_TOPIC, TAGS, TRAN_MSG, UNIQ_KEY, decode_properties
from mqproto.record import FLAG_TRANSACTION_COMMIT, FLAG_TRANSACTION_MASK
from osenv import SeededRng, SimClock, SimDisk

COMMIT, ROLLBACK, UNKNOW = (
    TransactionState.COMMIT_MESSAGE,
    TransactionState.ROLLBACK_MESSAGE,
    TransactionState.UNKNOW,
)
CHECK_INTERVAL_S = 60


async def end(
    broker: Broker, id_: str, state: TransactionState, *, from_check: bool = False, group: str = "shop"
) -> Ended:
    return await broker.transactions.end(group, id_, state, from_check=from_check)


async def visible(broker: Broker) -> list[bytes]:
    return [record.body for record in await read_all(broker, "t")]


class TestTable:
    def table(self) -> TransactionTable:
        table = TransactionTable(check_times_max=15)
        table.prepared(OpenHalf("tx", "shop", 0, 0, 0, first_store_ms=1_000))
        return table

    @pytest.mark.parametrize(("phase", "state"), list(itertools.product(Phase, TransactionState)))
    def test_every_pair_of_phase_and_word_has_its_action(self, phase: Phase, state: TransactionState) -> None:
        table = self.table()
        if phase is not Phase.PREPARED:
            table.closed("tx", phase)
        action = table.decide("tx", state, from_check=True)
        assert action is TRANSITIONS[phase, state]
        assert (action is Action.NOTHING) == (phase is not Phase.PREPARED)
        assert table.phase("tx") is phase

    def test_a_closed_transaction_never_opens_again(self) -> None:
        table = self.table()
        table.closed("tx", Phase.ROLLED_BACK)
        table.prepared(OpenHalf("tx", "shop", 9, 9, 9, first_store_ms=2_000))
        table.closed("tx", Phase.COMMITTED)
        assert (table.phase("tx"), table.open_half("tx")) == (Phase.ROLLED_BACK, None)

    def test_unknow_counts_only_as_the_answer_to_a_check_and_the_15th_rolls_back(self) -> None:
        table = self.table()
        assert table.decide("tx", UNKNOW, from_check=False) is Action.NOTHING
        for _ in range(14):
            assert table.decide("tx", UNKNOW, from_check=True) is Action.COUNT_CHECK
            table.counted("tx")
        assert table.decide("tx", UNKNOW, from_check=True) is Action.ROLL_BACK

    def test_immunity_is_measured_from_the_first_copy(self) -> None:
        table = self.table()
        assert table.due_for_check(6_999, immunity_ms=6_000) == []
        assert [one.transaction_id for one in table.due_for_check(7_000, immunity_ms=6_000)] == ["tx"]

    def test_only_the_newest_outcomes_are_remembered(self) -> None:
        table = TransactionTable(check_times_max=15, outcomes_remembered=2)
        for name in "abc":
            table.closed(name, Phase.COMMITTED)
        assert [table.phase(name) for name in "abc"] == [None, Phase.COMMITTED, Phase.COMMITTED]

    def test_the_next_start_reads_from_the_oldest_open_half(self) -> None:
        table = TransactionTable(check_times_max=15)
        assert table.scan_from(7, 8) == (7, 8)
        table.prepared(OpenHalf("a", "shop", 0, 3, 2, first_store_ms=0))
        table.prepared(OpenHalf("b", "shop", 0, 5, 4, first_store_ms=0))
        assert table.scan_from(7, 8) == (3, 2)
        table.closed("a", Phase.COMMITTED)
        assert table.scan_from(7, 8) == (5, 4)


async def test_a_half_message_is_seen_when_it_is_committed_and_not_before() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        (outcome,) = await produce(broker, half("t", b"x", "tx"))
        assert outcome.code is ResponseCode.SUCCESS
        assert await visible(broker) == []
        (prepared,) = await read_all(broker, HALF_TOPIC)
        assert prepared.sys_flag & FLAG_TRANSACTION_MASK == 0
        assert decode_properties(prepared.properties)[REAL_TOPIC] == "t"
        assert await end(broker, "tx", COMMIT) == Ended(ResponseCode.SUCCESS, outcome=COMMIT)
        (record,) = await read_all(broker, "t", expression="created")
        assert (record.body, record.sys_flag & FLAG_TRANSACTION_MASK) == (b"x", FLAG_TRANSACTION_COMMIT)
        properties = decode_properties(record.properties)
        assert properties == {UNIQ_KEY: "tx", PGROUP: "shop", TAGS: "created"}
        (op,) = await read_all(broker, OP_HALF_TOPIC)
        assert (op.body, decode_properties(op.properties)[TAGS]) == (b"0", "d")
        assert record.log_offset < op.log_offset


async def test_a_rolled_back_message_is_never_seen() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await produce(broker, half("t", b"x", "tx"))
        assert (await end(broker, "tx", ROLLBACK)).outcome is ROLLBACK
        assert await visible(broker) == []


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("first", [COMMIT, ROLLBACK])
@pytest.mark.parametrize("again", [COMMIT, ROLLBACK, UNKNOW])
async def test_ending_it_again_tells_the_first_outcome_and_delivers_nothing_twice(
    first: TransactionState, again: TransactionState, restart: bool
) -> None:
    disk = SimDisk()
    async with running_broker(disk, SimClock()) as broker:
        await produce(broker, half("t", b"x", "tx"))
        await end(broker, "tx", first)
        if not restart:
            assert await end(broker, "tx", again) == Ended(ResponseCode.SUCCESS, outcome=first)
            assert len(await visible(broker)) == (first is COMMIT)
    async with running_broker(disk, SimClock()) as broker:
        assert await end(broker, "tx", again) == Ended(ResponseCode.SUCCESS, outcome=first)
        assert len(await visible(broker)) == (first is COMMIT)


async def test_a_made_up_id_and_a_stranger_are_refused() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        await produce(broker, half("t", b"x", "tx"))
        ended = await end(broker, "made up", COMMIT)
        assert (ended.code, "made up" in ended.remark) == (ResponseCode.QUERY_NOT_FOUND, True)
        ended = await end(broker, "tx", COMMIT, group="stranger")
        assert (ended.code, "belongs to" in ended.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
        assert await visible(broker) == []


async def test_half_messages_that_make_no_sense_are_refused() -> None:
    async with running_broker(SimDisk(), SimClock()) as broker:
        two = half("t", b"x", "a"), half("t", b"y", "b")
        joined = type(two[0])("t", 0, 2, two[0].records + two[1].records)
        for batch, sentence in (
            (joined, "batch of its own"),
            (half("t", b"x", ""), UNIQ_KEY),
            (half("t", b"x", "tx", group=""), PGROUP),
        ):
            (outcome,) = await produce(broker, batch)
            assert outcome.code is ResponseCode.MESSAGE_ILLEGAL
            assert sentence in outcome.remark


def beat(broker: Broker, session: RecordingSession, group: str = "shop") -> None:
    broker.sessions.heartbeat(session, client("client", producer=group))


def join(broker: Broker, group: str = "shop") -> RecordingSession:
    session = RecordingSession()
    beat(broker, session, group)
    return session


async def one_check_interval(broker: Broker, clock: SimClock, session: RecordingSession) -> None:
    for _ in range(2):
        beat(broker, session)
        await clock.advance(CHECK_INTERVAL_S / 2)


class TestCheckBack:
    async def test_a_living_member_is_asked_every_minute_after_the_immunity(self) -> None:
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
            assert [check[1] for check in session.checks[1:]] == ["old", "young"]

    async def test_the_half_is_written_again_before_it_is_checked(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "tx"))
            for times in range(1, 4):
                await one_check_interval(broker, clock, session)
                copies = await read_all(broker, HALF_TOPIC)
                assert len(copies) == times + 1
                await end(broker, "tx", UNKNOW, from_check=True)
            assert decode_properties(copies[-1].properties)["TRANSACTION_CHECK_TIMES"] == "2"
            assert (await end(broker, "tx", COMMIT, from_check=True)).outcome is COMMIT
            assert await visible(broker) == [b"x"]

    async def test_an_hour_without_anybody_to_ask_rolls_nothing_back(self) -> None:
        clock = SimClock()
        async with running_broker(SimDisk(), clock) as broker:
            join(broker, group="others")
            await produce(broker, half("t", b"x", "tx"))
            await clock.advance(3_600)
            assert len(await read_all(broker, HALF_TOPIC)) == 1
            assert (await end(broker, "tx", COMMIT)).outcome is COMMIT

    async def test_after_15_answers_of_unknow_it_is_rolled_back_and_parked(self) -> None:
        clock, disk = SimClock(), SimDisk()
        async with running_broker(disk, clock) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "tx"))
            for _ in range(13):
                await one_check_interval(broker, clock, session)
                assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is UNKNOW
            await one_check_interval(broker, clock, session)  # writes down the 13 answers, and is not answered itself
        async with running_broker(disk, clock) as broker:
            assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is UNKNOW
            assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is ROLLBACK
            assert await visible(broker) == []
            assert [record.body for record in await read_all(broker, CHECK_MAX_TIMES_TOPIC)] == [b"x"]

    async def test_an_unanswered_check_does_not_count(self) -> None:
        clock = SimClock()
        options = broker_options()
        quick = BrokerOptions(
            options.identity, options.delay_levels, transactions=TransactionOptions(check_times_max=2)
        )
        async with running_broker(SimDisk(), clock, options=quick) as broker:
            session = join(broker)
            await produce(broker, half("t", b"x", "tx"))
            for _ in range(10):
                await one_check_interval(broker, clock, session)
            assert len(session.checks) == 10
            assert (await end(broker, "tx", UNKNOW, from_check=True)).outcome is UNKNOW


@pytest.mark.parametrize("seed", range(80))
async def test_whatever_is_cut_off_in_between_a_message_is_seen_if_and_only_if_it_was_committed(seed: int) -> None:
    rng, disk, clock = SeededRng(seed), SimDisk(), SimClock()
    wish: dict[str, TransactionState] = {}
    answered: dict[str, TransactionState] = {}
    number = 0
    for _ in range(4):
        async with running_broker(disk, clock, clean_stop=rng.random() < 0.2) as broker:
            for id_, outcome in answered.items():  # what was answered before the crash is still so
                assert (await end(broker, id_, rng.choice([COMMIT, ROLLBACK]))).outcome is outcome
            for _ in range(rng.randrange(1, 10)):
                id_ = f"tx-{number}"
                number += 1
                await produce(broker, half("t", id_.encode(), id_), incoming("noise", [b"n" * rng.randrange(1, 999)]))
                wish[id_] = rng.choice([COMMIT, ROLLBACK])
                if rng.random() < 0.6:
                    answered[id_] = (await end(broker, id_, wish[id_])).outcome
            if rng.random() < 0.3:
                await broker.store.checkpoint()
            if rng.random() < 0.5:  # one more that may or may not reach the disk
                id_ = f"tx-{number}"
                number += 1
                broker.producing.put([half("t", id_.encode(), id_)])
                wish[id_] = ROLLBACK
        disk.crash(rng)
        if rng.random() < 0.2:
            disk.remove_tree(StoreLayout(STORE_ROOT).config / "transactionOffset.json")
            disk.remove_tree(StoreLayout(STORE_ROOT).config / "transactionOffset.json.bak")
    async with running_broker(disk, clock) as broker:
        for half_ in broker.transaction_table.all_open():  # what is still open gets its answer by a check
            await end(broker, half_.transaction_id, wish[half_.transaction_id], from_check=True)
        committed = {id_ for id_, state in (wish | answered).items() if state is COMMIT}
        assert sorted(body.decode() for body in await visible(broker)) == sorted(committed)
        assert set(OUTCOMES.values()) == {COMMIT, ROLLBACK}
