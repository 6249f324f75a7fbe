"""The tables of transactions: every pair of phase and word, and what is kept of a million halves."""

from __future__ import annotations

import itertools
import random

import pytest

from mq_broker.core.transactions import (
    CHECKS_UNANSWERED_MAX,
    DECISIONS,
    OUTCOMES,
    TRANSITIONS,
    Action,
    ChecksUnderWay,
    Half,
    HalfColumns,
    Phase,
    TransactionState,
    TransactionTable,
)
from mq_broker.testing import COMMIT, ROLLBACK, UNKNOW

UNDECIDED = {Phase.PREPARED, Phase.PARKED}


def a_half(id_: str, offset: int = 0, *, first_store_ms: int = 0, immunity_s: int | None = None) -> Half:
    return Half(id_, "shop", offset * 100, offset, first_store_ms, immunity_s=immunity_s)


def table_in(phase: Phase) -> TransactionTable:
    table = TransactionTable(check_times_max=15)
    table.prepared(a_half("tx"), 0)
    if phase is Phase.PARKED:
        table.parked(a_half("tx"))
    elif phase is not Phase.PREPARED:
        table.closed("tx", phase)
    return table


class TestWords:
    @pytest.mark.mechanism("T5")
    @pytest.mark.parametrize(("phase", "state"), list(itertools.product(Phase, TransactionState)))
    def test_every_pair_of_phase_and_word_of_a_producer_has_its_action(
        self, phase: Phase, state: TransactionState
    ) -> None:
        table = table_in(phase)
        action = table.decide("tx", state, answers_check=True)
        assert action is TRANSITIONS[phase, state]
        assert (action is Action.NOTHING) == (phase is not Phase.PREPARED)
        assert table.phase("tx") is phase

    @pytest.mark.mechanism("T5")
    @pytest.mark.parametrize(("phase", "state"), list(itertools.product(Phase, TransactionState)))
    def test_every_pair_of_phase_and_word_of_an_operator_has_its_action(
        self, phase: Phase, state: TransactionState
    ) -> None:
        table = table_in(phase)
        action = table.decide_by_operator("tx", state)
        wanted = {COMMIT: Action.COMMIT, ROLLBACK: Action.ROLL_BACK}.get(state) if phase in UNDECIDED else None
        assert action is DECISIONS[phase, state] is (wanted or Action.NOTHING)
        assert table.phase("tx") is phase

    def test_for_its_producer_a_parked_transaction_is_rolled_back(self) -> None:
        assert OUTCOMES == {
            Phase.PREPARED: UNKNOW,
            Phase.PARKED: ROLLBACK,
            Phase.COMMITTED: COMMIT,
            Phase.ROLLED_BACK: ROLLBACK,
        }

    def test_an_unknown_transaction_cannot_be_ended(self) -> None:
        table = table_in(Phase.PREPARED)
        assert table.decide("other", COMMIT, answers_check=True) is None
        assert table.decide_by_operator("other", COMMIT) is None

    def test_unknow_counts_only_as_the_answer_to_a_check_and_the_15th_parks(self) -> None:
        table = table_in(Phase.PREPARED)
        assert table.decide("tx", UNKNOW, answers_check=False) is Action.NOTHING
        for _ in range(14):
            assert table.decide("tx", UNKNOW, answers_check=True) is Action.COUNT_CHECK
            table.counted("tx")
        assert table.decide("tx", UNKNOW, answers_check=True) is Action.PARK


class TestTable:
    @pytest.mark.parametrize("phase", [Phase.PARKED, Phase.COMMITTED, Phase.ROLLED_BACK])
    def test_what_is_not_open_never_opens_again(self, phase: Phase) -> None:
        table = table_in(phase)
        table.prepared(a_half("tx", 9), 9)
        assert (table.phase("tx"), table.open_half("tx")) == (phase, None)

    def test_a_closed_transaction_keeps_its_first_outcome_and_is_never_parked(self) -> None:
        table = table_in(Phase.ROLLED_BACK)
        table.closed("tx", Phase.COMMITTED)
        table.parked(a_half("tx"))
        assert (table.phase("tx"), table.undecided("tx")) == (Phase.ROLLED_BACK, None)

    @pytest.mark.parametrize("phase", [Phase.COMMITTED, Phase.ROLLED_BACK])
    def test_a_parked_transaction_is_closed_by_a_decision(self, phase: Phase) -> None:
        table = table_in(Phase.PARKED)
        assert table.undecided("tx") == a_half("tx")
        table.closed("tx", phase)
        assert (table.phase("tx"), table.undecided("tx")) == (phase, None)

    def test_only_the_newest_outcomes_are_remembered(self) -> None:
        table = TransactionTable(check_times_max=15, outcomes_remembered=2)
        for name in "abc":
            table.closed(name, Phase.COMMITTED)
        assert [table.phase(name) for name in "abc"] == [None, Phase.COMMITTED, Phase.COMMITTED]

    def test_the_next_start_reads_from_the_end_when_nothing_is_open(self) -> None:
        assert TransactionTable(check_times_max=15).scan_from(7, 8) == (7, 8)
        assert table_in(Phase.PARKED).scan_from(7, 8) == (7, 8)


class TestColumns:
    def due(self, columns: HalfColumns, now_ms: int, *, check_round: int = 1, immunity_ms: int = 6_000) -> list[str]:
        found = columns.due(
            0,
            columns.slot_count,
            now_ms=now_ms,
            immunity_ms=immunity_ms,
            check_round=check_round,
            is_there=lambda group: group == "shop",
        )
        return [half.transaction_id for half in found]

    @pytest.mark.mechanism("T9")
    def test_immunity_is_measured_from_the_first_copy(self) -> None:
        columns = HalfColumns()
        columns.put(a_half("tx", first_store_ms=1_000), 0)
        columns.put(a_half("tx", 5, first_store_ms=900_000), 0)
        assert self.due(columns, 6_999) == []
        assert self.due(columns, 7_000) == ["tx"]

    def test_a_half_may_have_an_immunity_of_its_own(self) -> None:
        columns = HalfColumns()
        for immunity_s in (0, 3, 60):
            columns.put(a_half(f"{immunity_s} s", immunity_s=immunity_s), 0)
        assert self.due(columns, 0) == ["0 s"]
        assert self.due(columns, 6_000) == ["0 s", "3 s"]
        assert self.due(columns, 60_000) == ["0 s", "3 s", "60 s"]

    def test_no_half_is_due_of_a_group_that_is_not_there_or_twice_in_a_round(self) -> None:
        columns = HalfColumns()
        columns.put(a_half("tx"), 0)
        columns.put(Half("stranger", "unknown", 0, 0, 0), 0)
        columns.asked("tx", 1)
        assert self.due(columns, 60_000) == []
        assert self.due(columns, 60_000, check_round=2) == ["tx"]

    def test_a_cohort_without_halves_no_longer_says_where_the_next_start_reads(self) -> None:
        columns = HalfColumns(cohort_size=1)
        columns.put(a_half("a", 3), 2)
        columns.put(a_half("b", 5), 4)
        assert columns.begins == (3, 2)
        columns.put(a_half("a", 6), 5)  # written again
        assert columns.begins == (5, 4)
        columns.remove("b")
        assert columns.begins == (6, 5)
        columns.remove("a")
        assert columns.begins is None

    @pytest.mark.parametrize("seed", range(20))
    def test_it_is_what_a_dictionary_would_be_and_its_beginnings_lie_before_all(self, seed: int) -> None:
        rng = random.Random(seed)
        columns, model, op_begins = HalfColumns(cohort_size=4), dict[str, Half](), dict[str, int]()
        for offset in range(400):
            id_ = f"tx-{rng.randrange(60)}"
            what = rng.random()
            if what < 0.5:
                half = a_half(id_, offset, first_store_ms=rng.randrange(1 << 42), immunity_s=rng.choice([None, 0, 9]))
                columns.put(half, offset * 2)
                if id_ in model:  # what the first copy said stays
                    first = model[id_]
                    half = Half(
                        id_, first.producer_group, half.log_offset, offset, first.first_store_ms, 0, first.immunity_s
                    )
                model[id_], op_begins[id_] = half, offset * 2
            elif what < 0.8:
                columns.remove(id_)
                model.pop(id_, None)
                op_begins.pop(id_, None)
            assert (len(columns), id_ in columns, columns.get(id_)) == (len(model), id_ in model, model.get(id_))
            if model:
                assert columns.begins is not None
                half_begin, op_begin = columns.begins
                assert half_begin <= min(half.queue_offset for half in model.values())
                assert op_begin <= min(op_begins.values())
            else:
                assert columns.begins is None
        everything = columns.between(0, columns.slot_count)
        assert (
            {half.transaction_id: half for half in everything} == model == {one.transaction_id: one for one in columns}
        )
        below = columns.below(20_000, 0, columns.slot_count)
        assert {one.transaction_id for one in below} == {id_ for id_, one in model.items() if one.log_offset < 20_000}
        assert columns.slot_count <= 60


class TestChecksUnderWay:
    def test_a_check_is_answered_once_and_only_the_newest_counts(self) -> None:
        checks = ChecksUnderWay[str]()
        assert checks.member("tx") is None
        checks.asked("tx", "first")
        checks.asked("tx", "second")
        assert checks.member("tx") == "second"
        checks.ended("tx")
        checks.ended("tx")
        assert checks.member("tx") is None

    def test_a_member_that_owes_too_many_answers_is_asked_no_more_until_it_gives_one_or_the_round_is_over(self) -> None:
        checks = ChecksUnderWay[str]()
        for number in range(CHECKS_UNANSWERED_MAX):
            assert checks.ready(["slow", "quick"]) == ["slow", "quick"]
            checks.asked(f"tx-{number}", "slow")
        assert checks.ready(["slow", "quick"]) == ["quick"]
        checks.ended("tx-0")
        assert checks.ready(["slow"]) == ["slow"]
        checks.asked("tx-0", "slow")
        assert checks.ready(["slow"]) == []
        checks.begin_round()
        assert checks.ready(["slow"]) == ["slow"]
        assert checks.member("tx-0") == "slow"  # a late answer is one
