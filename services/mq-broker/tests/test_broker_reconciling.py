"""Where a replica has to begin: epochs, and the search by comparison."""

from __future__ import annotations

import random
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any

import pytest

from mq_broker.core.replica_state import (
    NO_EPOCH,
    Cut,
    Epoch,
    EpochBegin,
    EpochHistory,
    common_end,
    history_from_json,
    history_to_json,
)
from mq_broker.replication.following import (
    Compare,
    Compared,
    CutLog,
    Greeted,
    Reconciliation,
    Reject,
    StartFollowing,
)
from mq_broker.replication.frames import PROTOCOL_VERSION, MasterHello


def history(*begins: tuple[int, int, int]) -> EpochHistory:
    return EpochHistory(tuple(EpochBegin(Epoch(term, start), at) for term, start, at in begins))


@pytest.mark.parametrize(
    ("mine", "my_end", "theirs", "their_end", "expected"),
    [
        (history(), 0, history((1, 1, 0)), 500, 0),
        (history(), 300, history((1, 1, 0)), 500, 300),
        (history((1, 1, 0)), 300, history((1, 1, 0)), 500, 300),
        (history((1, 1, 0)), 500, history((1, 1, 0), (1, 2, 400)), 450, 400),
        (history((1, 1, 0)), 500, history((1, 1, 0), (2, 0, 400)), 900, 400),
        (history((1, 1, 0), (1, 2, 300)), 500, history((1, 1, 0), (2, 0, 200)), 900, 200),
        (history((1, 1, 0), (2, 0, 400)), 700, history((1, 1, 0), (2, 0, 400), (2, 1, 600)), 900, 600),
        (history((1, 1, 100)), 500, history((2, 0, 50)), 900, 100),
        (history((1, 1, 400)), 500, history((1, 1, 0)), 300, 300),
        (history((1, 1, 0), (2, 0, 400)), 350, history((1, 1, 0), (2, 0, 400)), 900, 350),
    ],
)
def test_epochs_tell_up_to_where_two_logs_can_be_the_same(
    mine: EpochHistory, my_end: int, theirs: EpochHistory, their_end: int, expected: int
) -> None:
    assert common_end(mine, my_end, theirs, their_end) == expected


def test_a_history_follows_its_log() -> None:
    made = EpochHistory().begun(Epoch(1, 1), 0).begun(Epoch(1, 2), 300).begun(Epoch(2, 0), 500)
    assert made == history((1, 1, 0), (1, 2, 300), (2, 0, 500))
    assert made.begun(Epoch(2, 1), 500) == history((1, 1, 0), (1, 2, 300), (2, 1, 500))
    assert made.cut(300) == history((1, 1, 0))
    assert made.without(300) == history((1, 2, 300), (2, 0, 500))
    assert made.without(299) == made
    assert made.newest == Epoch(2, 0)
    assert EpochHistory().newest == NO_EPOCH
    assert history_from_json(history_to_json(made)) == made


@pytest.mark.parametrize(
    "begins", [((1, 1, 0), (1, 1, 5)), ((2, 0, 0), (1, 9, 5)), ((1, 1, 9), (1, 2, 5)), ((1, -1, 0),), ((1, 1, -1),)]
)
def test_what_cannot_be_a_history_is_rejected(begins: tuple[tuple[int, int, int], ...]) -> None:
    with pytest.raises(ValueError, match="epoch"):
        history(*begins)


@dataclass(frozen=True)
class Log:
    """A log as the sizes and contents of its records, from `begin` on."""

    begin: int
    records: tuple[tuple[int, int], ...]  # size, content

    @property
    def boundaries(self) -> list[int]:
        at, found = self.begin, [self.begin]
        for size, _ in self.records:
            found.append(at := at + size)
        return found

    @property
    def end(self) -> int:
        return self.boundaries[-1]

    def last_before(self, end: int) -> tuple[int, int] | None:
        return self.records[self.boundaries.index(end) - 1] if end in self.boundaries[1:] else None


def search(mine: Log, theirs: Log, my_history: EpochHistory, their_history: EpochHistory) -> tuple[object, int]:
    """The decision, and how many comparisons it took."""
    made = Reconciliation(my_history.newest, "", "me", my_history, mine.begin, mine.end)
    epoch = max(Epoch(9, 9), their_history.newest)
    action = made.step(Greeted(epoch, MasterHello("m", theirs.begin, theirs.end, their_history, True)))
    compared = 0
    while isinstance(action, Compare):
        compared += 1
        boundaries = mine.boundaries
        end = boundaries[bisect_right(boundaries, action.at_most) - 1]
        matches = end > action.at_least and mine.last_before(end) == theirs.last_before(end)
        action = made.step(Compared(end, matches))
    return action, compared


@pytest.mark.mechanism("H2")
@pytest.mark.parametrize("seed", range(300))
def test_the_fork_is_found_by_content_alone(seed: int) -> None:
    rng = random.Random(seed)
    common = tuple((rng.randrange(90, 4_000), number) for number in range(rng.randrange(1, 60)))
    tails = [
        tuple((rng.randrange(90, 4_000), side * 1_000 + number) for number in range(rng.choice([0, 0, 1, 40])))
        for side in (1, 2)
    ]
    mine, theirs = Log(0, common + tails[0]), Log(0, common + tails[1])
    fork = Log(0, common).end
    action, compared = search(mine, theirs, EpochHistory(), EpochHistory())
    assert action == (CutLog(Cut(fork)) if mine.end > fork else StartFollowing(fork))
    assert compared <= 25


@pytest.mark.parametrize("seed", range(50))
def test_logs_that_begin_at_different_places_are_compared_where_both_have_something(seed: int) -> None:
    rng = random.Random(seed)
    records = tuple((rng.randrange(90, 4_000), number) for number in range(60))
    whole = Log(0, records)
    first, last = rng.randrange(0, 40), rng.randrange(41, 60)
    mine = Log(0, records[:last])
    theirs = Log(whole.boundaries[first], records[first:])
    assert search(mine, theirs, EpochHistory(), EpochHistory())[0] == StartFollowing(mine.end)
    assert search(Log(theirs.begin, theirs.records[:1]), whole, EpochHistory(), EpochHistory())[0] == StartFollowing(
        theirs.boundaries[1]
    )


THIRD = Epoch(3, 0)


def greeted(made: Reconciliation, epoch: Epoch = THIRD, **changes: Any) -> object:
    hello = MasterHello("m", 0, 1_000, history((3, 0, 0)), True)
    return made.step(Greeted(epoch, replace(hello, **changes)))


@pytest.mark.parametrize(
    ("made", "epoch", "changes", "remark"),
    [
        (Reconciliation(Epoch(3, 1), "m", "me", history(), 0, 0), Epoch(3, 0), {}, "has been superseded"),
        (Reconciliation(Epoch(3, 0), "other", "me", history(), 0, 0), Epoch(3, 0), {}, "two masters in term 3"),
        (Reconciliation(NO_EPOCH, "", "m", history(), 0, 0), Epoch(3, 0), {}, "own replica id"),
        (
            Reconciliation(NO_EPOCH, "", "me", history(), 0, 0),
            Epoch(3, 0),
            {"protocol_version": PROTOCOL_VERSION + 1},
            "speaks version",
        ),
        (Reconciliation(Epoch(1, 0), "x", "me", history((1, 0, 50)), 100, 500), Epoch(3, 0), {}, "no record of this"),
    ],
)
def test_a_master_that_cannot_be_followed_is_rejected(
    made: Reconciliation, epoch: Epoch, changes: dict[str, Any], remark: str
) -> None:
    """Bug zoo 20, among others."""
    action = greeted(made, epoch, **changes)
    assert isinstance(action, Reject)
    assert remark in action.remark


@pytest.mark.parametrize(
    ("history_of_mine", "changes"),
    [
        (history((1, 0, 50)), {}),  # nothing matches
        (history((1, 0, 50)), {"log_begin": 200}),  # what both may have had is in neither
        (history(), {}),
    ],
)
def test_a_log_without_a_common_record_goes_if_the_same_master_began_both(
    history_of_mine: EpochHistory, changes: dict[str, Any]
) -> None:
    for mine, theirs, expected in (
        ("first", "first", CutLog(Cut(100, begin=changes.get("log_begin", 0)))),
        ("first", "other", Reject),
        ("first", "", Reject),  # the master is of an earlier version
        ("", "", Reject),
    ):
        made = Reconciliation(Epoch(1, 0), "x", "me", history_of_mine, 100, 500, mine)
        action = greeted(made, first_master_id=theirs, **changes)
        while isinstance(action, Compare):
            action = made.step(Compared(max(100, action.at_most - 90), matches=False))
        assert action == expected or type(action) is expected


def test_who_was_away_for_too_long_begins_anew() -> None:
    made = Reconciliation(Epoch(1, 0), "m", "me", history((1, 0, 0)), 0, 500)
    for theirs in (history((1, 0, 0), (2, 0, 550)), history((2, 0, 550))):  # older epochs may have gone with the files
        assert greeted(made, log_begin=600, history=theirs) == CutLog(Cut(500, begin=600))
    empty = Reconciliation(NO_EPOCH, "", "me", history(), 0, 0)
    assert greeted(empty, log_begin=600) == CutLog(Cut(0, begin=600))
    begun = Reconciliation(NO_EPOCH, "", "me", history(), 600, 600)
    assert greeted(begun, log_begin=600) == StartFollowing(600)


def test_a_fork_below_the_masters_first_file_is_cut_before_the_log_begins_anew() -> None:
    made = Reconciliation(Epoch(1, 2), "m", "me", history((1, 1, 0), (1, 2, 300)), 0, 900)
    assert greeted(made, log_begin=600, history=history((1, 1, 0), (2, 0, 200))) == CutLog(Cut(200))


def test_a_fork_that_no_common_epoch_shows_is_no_place_for_a_cut() -> None:
    made = Reconciliation(Epoch(5, 2), "m", "me", history((5, 0, 0), (5, 1, 300)), 0, 900)
    assert isinstance(greeted(made, Epoch(7, 0), log_begin=600, history=history((7, 0, 400))), Reject)


@pytest.mark.parametrize("begin", [0, 50])
def test_what_only_a_log_has_that_begins_anew_is_kept_from_where_it_parts(begin: int) -> None:
    made = Reconciliation(Epoch(1, 2), "me", "me", history((1, 1, 0), (1, 2, 300)), begin, 500, "first")
    forked = history((1, 1, 0), (2, 0, 200))
    assert greeted(made, log_begin=600, history=forked, first_master_id="first") == CutLog(Cut(200, begin=600))
    for theirs in (history((2, 0, 200), (2, 1, 550)), history((2, 5, 580))):  # older epochs went with the files
        assert greeted(made, log_begin=600, history=theirs, first_master_id="first") == CutLog(Cut(begin, begin=600))


@pytest.mark.parametrize("log_begin", [300, 500, 600])
def test_two_first_masters_share_no_epoch(log_begin: int) -> None:
    """Each of them begins epoch 1.1 at offset 0, so that this says nothing where there is no record to compare."""
    made = Reconciliation(Epoch(1, 3), "me", "me", history((1, 1, 0), (1, 2, 200)), 0, 500, "me")
    action = greeted(made, log_begin=log_begin, history=history((1, 1, 0), (2, 0, 250)), first_master_id="other")
    while isinstance(action, Compare):
        action = made.step(Compared(log_begin, matches=False))
    assert isinstance(action, Reject)


def test_a_log_without_records_begins_anew_at_a_master_that_it_has_not_followed() -> None:
    """Its queues have the numbers that another master has told, and the master's may have others."""
    theirs = history((2, 0, 600))
    made = Reconciliation(Epoch(1, 1), "m", "me", history((1, 1, 0)), 600, 600)
    assert greeted(made, log_begin=600, history=theirs) == CutLog(Cut(600, begin=600))
    made = Reconciliation(Epoch(1, 1), "m", "me", history((1, 1, 0)), 0, 600, "first")
    assert greeted(made, log_begin=600, history=theirs, first_master_id="first") == Compare(600, 600)
    assert made.step(Compared(600, matches=False)) == CutLog(Cut(0, begin=600))


def test_an_empty_log_whose_past_is_not_the_masters_begins_anew() -> None:
    mine = history((1, 1, 0))
    for theirs, expected in (
        (history((1, 1, 0), (2, 0, 300)), CutLog(Cut(600, begin=600))),
        (history((1, 1, 0), (2, 0, 700)), StartFollowing(600)),
    ):
        made = Reconciliation(Epoch(1, 1), "m", "me", mine, 600, 600)
        assert greeted(made, log_begin=600, history=theirs) == expected


def test_an_empty_log_begins_anew_at_a_master_whose_log_begins_earlier() -> None:
    """It has no record to show for the place at which it begins, and a master feeds no replica on trust."""
    made = Reconciliation(Epoch(1, 1), "m", "me", history((1, 1, 0)), 600, 600)
    assert greeted(made, history=history((1, 1, 0))) == CutLog(Cut(600, begin=0))


def test_a_log_that_ends_where_the_masters_begins_is_believed_by_its_epochs() -> None:
    made = Reconciliation(Epoch(1, 1), "m", "me", history((1, 1, 0)), 0, 600)
    assert greeted(made, log_begin=600, history=history((1, 1, 0))) == StartFollowing(600)
