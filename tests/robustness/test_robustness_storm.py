"""Storms on a replicated pair with real clients, and that their checker sees what it is there for."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest
from histories import executed
from runner import replay_command
from storm_clients import CONCURRENT, ORDERED, ORDERLY, PLAIN
from storm_excuses import Again, Loss, LossEvent
from storm_histories import STORM_SWEEP
from storm_model import Answer, InvariantError, Message, StormModel
from worker import Worker

SEEDS = range(1, 3)  # of `make test`


@pytest.mark.timeout(600)
def test_a_pair_and_its_clients_keep_their_promises_in_every_storm(
    record_property: Callable[[str, object], None],
) -> None:
    """In a process of its own, where a seed is the same storm each time."""
    ran: Counter[str] = Counter()
    worker = Worker(STORM_SWEEP.name)
    try:
        for seed in SEEDS:
            outcome = worker.run(seed, time.monotonic() + 200)
            assert outcome.violations == (), f"again: {replay_command(STORM_SWEEP.name, seed)}"
            ran += Counter(outcome.counts)
    finally:
        worker.close()
    assert ran["sent: SEND_OK"] > 50 * len(SEEDS)
    assert ran["consumed"] > 100 * len(SEEDS)
    record_property("figure", f"storms on a pair: {executed(ran)}")


@pytest.fixture
def model() -> StormModel:
    return StormModel((CONCURRENT, ORDERLY))


def answered(
    model: StormModel, message: Message, *, at: float = 1.0, log_offset: int = 100, strong: bool = True
) -> None:
    model.answered(message, Answer(at, log_offset, 1, strong), "SEND_OK")


def consumed(model: StormModel, message: Message, now: float, group: str = CONCURRENT.name, member: str = "m") -> None:
    model.ended(model.begun(group, member, message.body, now), now + 0.1, fails=False)


class TestLosses:
    def test_what_was_acknowledged_and_does_not_come_is_seen(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0)
        answered(model, message)
        with pytest.raises(InvariantError, match="concurrent has not got b'm0' of plain"):
            model.check_end(Counter())

    def test_a_strong_answer_survives_the_promotion_that_a_weak_one_does_not(self, model: StormModel) -> None:
        strong, weak, below = (model.message(PLAIN, 0.0) for _ in range(3))
        answered(model, strong)
        answered(model, weak, strong=False)
        answered(model, below, strong=False, log_offset=49)
        model.losses.append(LossEvent(Loss.ASYNC_MASTER, 2.0, 2, 50, spares_strong=True))
        assert [line.split()[4] for line in model.missing()] == ["b'm0'", "b'm2'"]

    def test_a_power_cut_excuses_the_last_moment_only(self, model: StormModel) -> None:
        old, new = (model.message(PLAIN, 0.0) for _ in range(2))
        answered(model, old, at=1.0)
        answered(model, new, at=4.9)
        model.losses.append(LossEvent(Loss.NOT_FLUSHED, 6.0, 2, 50, since=4.5))
        assert [line.split()[4] for line in model.missing()] == ["b'm0'"]

    def test_a_later_generation_is_not_excused_by_an_earlier_loss(self, model: StormModel) -> None:
        message = model.message(PLAIN, 3.0)
        model.losses.append(LossEvent(Loss.RESTORED, 2.0, 2, 50))
        model.answered(message, Answer(3.0, 100, 2, strong=False), "SEND_OK")
        assert model.missing()

    def test_a_committed_transaction_that_does_not_come_is_seen(self, model: StormModel) -> None:
        model.message(PLAIN, 0.0, is_transaction=True, commits=True)
        model.message(PLAIN, 0.0, is_transaction=True, commits=False)
        assert len(model.missing()) == 1

    def test_a_message_that_failed_for_good_has_to_be_a_dead_letter(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0, failures=9)
        answered(model, message)
        for now in (1.0, 2.0, 3.0):
            model.ended(model.begun(CONCURRENT.name, "m", message.body, now), now + 0.1, fails=True)
        model.check_end(Counter({("%DLQ%concurrent", message.body): 1}))
        with pytest.raises(InvariantError, match="is not in %DLQ%concurrent"):
            model.check_end(Counter())

    def test_a_message_that_is_stored_twice_is_seen(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0)
        with pytest.raises(InvariantError, match="stored 2 times"):
            model.check_end(Counter({(PLAIN, message.body): 2}))


class TestWhatMustNotCome:
    def test_a_message_that_comes_early_is_seen(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0, delay_s=10.0)
        with pytest.raises(InvariantError, match=r"1\.500 s early"):
            model.begun(CONCURRENT.name, "m", message.body, 8.5)
        consumed(model, message, 9.5)

    def test_deliver_at_follows_the_wall_clock_that_counts(self, model: StormModel) -> None:
        first, second = (model.message(PLAIN, 0.0, due_wall_s=30.0) for _ in range(2))
        model.walls.append((5.0, 20.0))
        with pytest.raises(InvariantError, match=r"s before 30\.000 of the wall clock"):
            model.begun(CONCURRENT.name, "m", first.body, 4.0)
        consumed(model, second, 9.5)

    def test_a_message_that_comes_after_removed_is_seen(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0)
        model.removed(message, Answer(1.0, 200, 1, strong=True))
        with pytest.raises(InvariantError, match="which a recall had removed"):
            model.begun(CONCURRENT.name, "m", message.body, 2.0)

    def test_removed_after_it_came_is_seen(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0)
        consumed(model, message, 1.0)
        with pytest.raises(InvariantError, match="and then a recall answered REMOVED"):
            model.removed(message, Answer(2.0, 200, 1, strong=True))

    @pytest.mark.parametrize("commits", [False, None])
    def test_a_message_whose_transaction_did_not_commit_is_seen(self, model: StormModel, commits: bool | None) -> None:
        message = model.message(PLAIN, 0.0, is_transaction=True, commits=commits)
        with pytest.raises(InvariantError, match="whose transaction did not commit"):
            model.begun(CONCURRENT.name, "m", message.body, 2.0)

    def test_what_a_stale_master_stores_beyond_its_lost_tail_may_be_lost_and_what_it_had_is_not(
        self, model: StormModel
    ) -> None:
        had, stored_then = (model.message(PLAIN, 0.0) for _ in range(2))
        answered(model, had, at=1.0, log_offset=95, strong=False)
        model.losses.append(LossEvent(Loss.ASYNC_MASTER, 2.0, 2, 100, spares_strong=True))
        model.losses.append(LossEvent(Loss.ASYNC_MASTER, 3.0, 2, 90, spares_strong=True, since=3.0))
        answered(model, stored_then, at=4.0, log_offset=95, strong=False)
        assert [line.split()[4] for line in model.missing()] == ["b'm0'"]

    def test_a_copy_of_a_branch_that_was_lost_goes_on_from_where_it_branched_off(self, model: StormModel) -> None:
        model.losses.append(LossEvent(Loss.ASYNC_MASTER, 2.0, 2, 100, spares_strong=True))
        assert [model.common_end(generation, 150) for generation in (1, 2)] == [100, 150]


class TestAgain:
    def test_a_duplicate_without_a_reason_is_seen(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0)
        consumed(model, message, 1.0)
        model.disturbed(Again.MEMBER_ENDED, 1.0, 1.5, ORDERLY.name)  # of another group
        model.disturbed(Again.NOT_SENT_BACK, 1.0, 1.5)  # for what was sent back
        with pytest.raises(InvariantError, match=r"m2 of concurrent got b'm0' .* again at 2.000; m finished it at 1.1"):
            model.begun(CONCURRENT.name, "m2", message.body, 2.0)

    def test_a_failure_and_a_disturbance_are_reasons(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0)
        model.ended(model.begun(CONCURRENT.name, "m", message.body, 1.0), 1.1, fails=True)
        consumed(model, message, 2.0)
        model.disturbed(Again.PROMOTED_ALONE, 2.0, 3.0)
        consumed(model, message, 3.0)
        assert model.counts["again: PROMOTED_ALONE"] == 1

    def test_a_disturbance_that_was_over_before_is_no_reason(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0)
        model.disturbed(Again.OPERATOR, 1.0, 2.0, CONCURRENT.name)
        consumed(model, message, 10.0)
        with pytest.raises(InvariantError, match=r"again at 11\.000"):
            model.begun(CONCURRENT.name, "m", message.body, 11.0)

    def test_a_switch_excuses_what_goes_to_another_member_only(self, model: StormModel) -> None:
        message = model.message(PLAIN, 0.0)
        consumed(model, message, 1.0)
        model.disturbed(Again.SWITCHED, 0.0, 2.0)
        consumed(model, message, 2.0, member="m2")
        with pytest.raises(InvariantError, match=r"m2 of concurrent got b'm0' .* again at 3\.000"):
            model.begun(CONCURRENT.name, "m2", message.body, 3.0)

    def test_a_switch_excuses_a_retry_when_the_message_went_to_another_member_meanwhile(
        self, model: StormModel
    ) -> None:
        message = model.message(PLAIN, 0.0)
        model.disturbed(Again.SWITCHED, 0.0, 2.0)
        model.ended(model.begun(CONCURRENT.name, "m1", message.body, 1.0), 1.1, fails=True)
        consumed(model, message, 1.2, member="m2")
        consumed(model, message, 2.0, member="m2")
        assert model.counts["again: SWITCHED"] == 1


class TestOrder:
    def test_a_message_before_those_in_front_of_it_is_seen(self, model: StormModel) -> None:
        first, second = (model.message(ORDERED, 0.0, queue=1) for _ in range(2))
        answered(model, first)
        with pytest.raises(InvariantError, match=r"orderly got b'm1' of queue 1 at 1.000 before \[b'm0'\]"):
            model.begun(ORDERLY.name, "m", second.body, 1.0)

    def test_two_listeners_of_a_queue_at_once_are_seen(self, model: StormModel) -> None:
        first, second = (model.message(ORDERED, 0.0, queue=1) for _ in range(2))
        model.begun(ORDERLY.name, "m1", first.body, 1.0)
        with pytest.raises(InvariantError, match="m2 and \\['m1'\\] of orderly are at queue 1 at once"):
            model.begun(ORDERLY.name, "m2", second.body, 1.0)

    def test_what_stands_in_the_tail_of_a_replaced_master_has_no_order_with_what_came_to_the_new_one(
        self, model: StormModel
    ) -> None:
        new, stale = (model.message(ORDERED, 3.0, queue=1) for _ in range(2))
        model.losses.append(LossEvent(Loss.ASYNC_MASTER, 2.0, 2, 50))
        model.answered(new, Answer(4.0, 60, 2, strong=True), "SEND_OK")
        model.answered(stale, Answer(4.5, 70, 1, strong=False), "SEND_OK")
        consumed(model, stale, 5.0, ORDERLY.name)

    @pytest.mark.parametrize("why", list(Loss))
    def test_no_loss_excuses_the_order_of_what_is_sent_after_it(self, model: StormModel, why: Loss) -> None:
        first, second = (model.message(ORDERED, 3.0, queue=1) for _ in range(2))
        model.answered(first, Answer(4.0, 100, 2, strong=True), "SEND_OK")
        model.losses.append(LossEvent(why, 2.0, 2, 50))
        with pytest.raises(InvariantError, match="before"):
            model.begun(ORDERLY.name, "old", second.body, 6.0)
