"""What a master may confirm: the ledger, event by event."""

from __future__ import annotations

import random

import pytest

from mq_broker.core.replica_state import InSyncSet
from mq_broker.replication.in_sync import (
    JOIN_AGAIN_S,
    JOIN_GAP_BYTES,
    JOIN_WAIT_S,
    Acknowledged,
    Action,
    Confirm,
    Connected,
    Decide,
    Decided,
    Disconnected,
    Event,
    InSyncLedger,
    Left,
    Passed,
    Reject,
    Stored,
)

NOT_CATCHUP_S = 15.0
ALONE = InSyncSet(1, frozenset({"m"}))
PAIR = InSyncSet(2, frozenset({"m", "s"}))


def ledger(in_sync: InSyncSet = ALONE, *, synchronous: bool = True, min_in_sync: int = 1) -> InSyncLedger:
    made = InSyncLedger("m", synchronous, min_in_sync, NOT_CATCHUP_S, in_sync, confirmed=0)
    made.begin(made.in_sync, 0, 0.0)
    return made


def steps(made: InSyncLedger, *events: Event, now: float = 0.0, log_end: int = 100) -> list[Action]:
    return [action for event in events for action in made.step(event, now, log_end)]


def test_a_master_alone_confirms_what_it_has_and_says_that_it_is_alone() -> None:
    assert steps(ledger(), Stored(100)) == [Confirm(100, alone=True)]


def test_with_a_replica_in_sync_nothing_is_confirmed_before_it_has_it() -> None:
    made = ledger(PAIR)
    assert steps(made, Connected("s", 10), Stored(100)) == [Confirm(10, alone=False)]
    assert steps(made, Acknowledged("s", 60)) == [Confirm(60, alone=False)]
    assert steps(made, Acknowledged("s", 100)) == [Confirm(100, alone=False)]


def test_a_replica_in_sync_that_has_not_come_back_is_waited_for() -> None:
    assert steps(ledger(PAIR), Stored(100), Passed(), now=NOT_CATCHUP_S) == []


def test_a_replica_leaves_the_set_durably_before_anything_is_confirmed_without_it() -> None:
    made = ledger(PAIR)
    steps(made, Connected("s", 10), Stored(100))
    (decide,) = steps(made, Passed(), now=NOT_CATCHUP_S + 1)
    assert decide == Decide(InSyncSet(3, frozenset({"m"})))
    assert steps(made, Stored(120), Passed(), now=NOT_CATCHUP_S + 2, log_end=120) == []
    assert steps(made, Decided(decide.in_sync), now=NOT_CATCHUP_S + 2, log_end=120) == [Confirm(120, alone=True)]


def test_a_decision_that_did_not_reach_the_disk_changes_nothing() -> None:
    made = ledger(PAIR)
    steps(made, Connected("s", 10), Stored(100))
    (decide,) = steps(made, Passed(), now=NOT_CATCHUP_S + 1)
    assert isinstance(decide, Decide)
    assert steps(made, Decided(decide.in_sync, durable=False), now=NOT_CATCHUP_S + 2) == [decide]
    assert made.in_sync == PAIR


def test_a_replica_that_has_lost_what_it_vouched_for_leaves_the_set_until_it_has_it_again() -> None:
    """Under ASYNC_FLUSH a power cut takes what was acknowledged from the page cache."""
    made = ledger(PAIR)
    steps(made, Connected("s", 0), Stored(100), Acknowledged("s", 100), Disconnected("s"))
    (decide,) = steps(made, Connected("s", 70), now=1.0)
    assert decide == Decide(InSyncSet(3, frozenset({"m"})))
    assert steps(made, Decided(decide.in_sync), Acknowledged("s", 99), now=1.0) == []
    assert steps(made, Acknowledged("s", 100), now=1.1) == [Decide(InSyncSet(4, frozenset({"m", "s"})))]


def test_who_is_away_vouches_for_nothing_new() -> None:
    made = ledger(PAIR)
    steps(made, Connected("s", 0), Acknowledged("s", 100), Stored(60), Disconnected("s"))
    assert made.confirmed == 60
    assert steps(made, Stored(100)) == []


def test_who_says_that_it_stops_leaves_the_set_by_a_decision_too() -> None:
    made = ledger(PAIR)
    steps(made, Connected("s", 100), Stored(100))
    (decide,) = steps(made, Left("s"))
    assert decide == Decide(InSyncSet(3, frozenset({"m"})))
    assert steps(made, Stored(120), log_end=120) == []
    assert steps(made, Decided(decide.in_sync), log_end=120) == [Confirm(120, alone=True)]


def test_a_replica_that_has_everything_stays_however_long_nothing_happens() -> None:
    made = ledger(PAIR)
    steps(made, Connected("s", 100), Stored(100))
    assert steps(made, Passed(), now=1_000.0) == []


def test_a_replica_that_is_always_a_little_behind_stays() -> None:
    made = ledger(PAIR)
    steps(made, Connected("s", 0))
    for second in range(1, 100):
        end = second * 1_000
        actions = steps(made, Stored(end), Acknowledged("s", end - 500), now=float(second), log_end=end)
        assert not [action for action in actions if isinstance(action, Decide)]


def test_who_leaves_too_early_would_be_confirmed_without() -> None:
    """Bug zoo 22: it has to be behind for all of haMaxTimeSlaveNotCatchup."""
    made = ledger(PAIR)
    steps(made, Connected("s", 10), Stored(100))
    assert steps(made, Disconnected("s"), Passed(), now=NOT_CATCHUP_S) == []


def test_a_replica_joins_when_it_has_all_that_is_confirmed_and_not_before_that_is_on_disk() -> None:
    made = ledger()
    steps(made, Stored(100))
    assert steps(made, Connected("s", 10), Acknowledged("s", 99)) == []
    assert steps(made, Stored(150), log_end=150) == [Confirm(150, alone=True)]
    assert steps(made, Acknowledged("s", 120), log_end=160) == []
    assert not made.is_alone  # it has had everything, and is waited for from now on
    assert steps(made, Stored(160), log_end=160) == []
    assert steps(made, Acknowledged("s", 149), log_end=160) == []
    assert steps(made, Acknowledged("s", 155), log_end=160) == [Confirm(155, alone=True), Decide(PAIR)]
    assert steps(made, Decided(PAIR), log_end=160) == []
    assert steps(made, Acknowledged("s", 160), log_end=160) == [Confirm(160, alone=False)]


def test_a_replica_that_does_not_come_nearer_is_not_waited_for_any_longer() -> None:
    made = ledger()
    steps(made, Stored(120), Connected("s", 90), Acknowledged("s", 100), log_end=100)
    assert steps(made, Stored(150), log_end=150) == []
    later = JOIN_WAIT_S + 0.1
    assert steps(made, Passed(), Stored(160), now=later, log_end=160) == [
        Confirm(150, alone=True),
        Confirm(160, alone=True),
    ]
    assert steps(made, Passed(), Stored(170), now=later + JOIN_AGAIN_S, log_end=170) == [Confirm(170, alone=True)]


def test_a_replica_that_was_late_does_not_join_before_it_has_had_everything() -> None:
    made = ledger(PAIR)
    steps(made, Connected("s", 10), Stored(100))
    steps(made, Passed(), Decided(InSyncSet(3, frozenset({"m"}))), now=NOT_CATCHUP_S + 1)
    assert steps(made, Acknowledged("s", 99), Passed(), now=NOT_CATCHUP_S + 1) == []
    (decide,) = steps(made, Acknowledged("s", 100), now=NOT_CATCHUP_S + 2)
    assert isinstance(decide, Decide)


def test_a_replica_that_is_far_behind_is_not_waited_for() -> None:
    made = ledger()
    end = JOIN_GAP_BYTES + 11
    steps(made, Connected("s", 10), log_end=end)
    assert steps(made, Stored(end), log_end=end) == [Confirm(end, alone=True)]


def test_too_few_replicas_confirm_nothing() -> None:
    made = ledger(PAIR, min_in_sync=2)
    steps(made, Connected("s", 10), Stored(100))
    (decide,) = steps(made, Disconnected("s"), Passed(), now=NOT_CATCHUP_S + 1)
    assert isinstance(decide, Decide)
    assert steps(made, Decided(decide.in_sync), Stored(200), now=99.0, log_end=200) == []
    assert not made.is_sufficient


def test_an_asynchronous_master_confirms_by_itself_and_knows_who_is_in_sync() -> None:
    made = ledger(synchronous=False)
    assert steps(made, Stored(100), Connected("s", 0)) == [Confirm(100, alone=True)]
    assert steps(made, Acknowledged("s", 100)) == [Decide(PAIR)]


@pytest.mark.parametrize(
    ("before", "event", "remark"),
    [
        ((), Acknowledged("s", 1), "before it follows"),
        ((Connected("s", 0),), Acknowledged("s", 101), "up to 101, and the log ends at 100"),
        ((Connected("s", 50),), Acknowledged("s", 49), "up to 49, after 50"),
        ((Connected("s", 50), Disconnected("s")), Acknowledged("s", 60), "before it follows"),
    ],
)
def test_what_a_replica_cannot_have_is_rejected(before: tuple[Event, ...], event: Event, remark: str) -> None:
    """Bug zoo 19."""
    made = ledger(PAIR)
    steps(made, *before, Stored(100))
    confirmed = made.confirmed
    (rejected,) = steps(made, event)
    assert isinstance(rejected, Reject)
    assert remark in rejected.remark
    assert made.confirmed == confirmed


def test_two_links_of_one_replica_are_one_replica() -> None:
    """Bug zoo 18: with three replicas in the set, one that is there twice does not stand for two."""
    made = ledger(InSyncSet(2, frozenset({"m", "s", "t"})), min_in_sync=2)
    assert steps(made, Connected("s", 0), Connected("s", 0), Stored(100), Acknowledged("s", 100)) == []
    assert steps(made, Connected("t", 0), Acknowledged("t", 70)) == [Confirm(70, alone=False)]


@pytest.mark.mechanism("H1")
@pytest.mark.parametrize("seed", range(200))
def test_whatever_is_confirmed_every_replica_of_the_durable_set_has(seed: int) -> None:
    rng = random.Random(seed)
    made = ledger(min_in_sync=rng.choice([1, 2]))
    durable, pending, now, end, confirmed = ALONE, list[InSyncSet](), 0.0, 0, 0
    has = {"m": 0, "s": 0, "t": 0}
    connected = set[str]()
    for _ in range(300):
        now += rng.choice([0.0, 0.01, 0.5, 4.0])
        one = rng.choice(["s", "t"])
        events: list[Event] = [Passed()]
        match rng.randrange(6):
            case 0:
                end += rng.randrange(1, 3_000_000)
                has["m"] = end
                events = [Stored(end)]
            case 1 if one not in connected:
                connected.add(one)
                events = [Connected(one, has[one])]
            case 2 if one in connected and rng.random() < 0.3:
                connected.remove(one)
                events = [Disconnected(one)]
            case 3 | 4 if one in connected:
                has[one] = rng.randrange(has[one], end + 1) if rng.random() < 0.5 else end
                events = [Acknowledged(one, has[one])]
            case 5 if pending:
                decided = pending.pop()
                kept = rng.random() < 0.8
                durable = decided if kept else durable
                events = [Decided(decided, durable=kept)]
        for action in steps(made, *events, now=now, log_end=end):
            match action:
                case Decide(in_sync):
                    assert not pending
                    pending.append(in_sync)
                case Confirm(log_offset, alone):
                    assert log_offset > confirmed
                    confirmed = log_offset
                    assert all(has[replica] >= confirmed for replica in durable.replicas)
                    assert not pending or all(has[replica] >= confirmed for replica in pending[0].replicas)
                    assert alone == (durable.replicas == {"m"})
                case Reject():
                    raise AssertionError(action)
