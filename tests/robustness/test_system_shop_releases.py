"""Two versions of orders and of payments beside each other, as processes, under load: during a release and after it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shop_releases import FIRST, HALF, MIGRATIONS, ROLLED_BACK, SECOND, Release, ReleaseRound
from shop_rounds import run_round
from sweep import Outcome

from servicekit.testing.migrations import later_than

ORDERS_OF_A_TURN = 60
SEED = 1

pytestmark = [pytest.mark.needs("postgresql"), pytest.mark.processes, pytest.mark.timeout(300)]


def play(release: Release, record_property: Callable[[str, object], None]) -> Outcome:
    """The round, after which everything has to be right; every process has traded in every turn."""
    turns = 1 + len(release.steps)
    outcome = run_round(lambda folder: ReleaseRound(folder, SEED, turns * ORDERS_OF_A_TURN, True, release=release))
    figures = ", ".join(f"{count} {name}" for name, count in sorted(outcome.counts.items()))
    record_property("figure", f"release: {figures}")
    assert outcome.violations == ()
    assert outcome.executed == turns * ORDERS_OF_A_TURN
    for turn in range(turns):
        assert all(outcome.counts[f"turn {turn}: {name}"] for name in (*FIRST, *SECOND)), figures
    return outcome


@pytest.mark.mechanism("U10")
@pytest.mark.needs("history")
def test_the_version_before_the_newest_migration_trades_beside_this_one(
    record_property: Callable[[str, object], None],
) -> None:
    outcome = play(HALF, record_property)
    for service, migrations in MIGRATIONS.items():
        assert later_than(revision(outcome, 0, service)) == revision(outcome, 1, service) == migrations.head


@pytest.mark.mechanism("U10")
def test_this_version_starts_on_the_schema_of_the_next_one_trades_beside_it_and_after_it(
    record_property: Callable[[str, object], None],
) -> None:
    outcome = play(ROLLED_BACK, record_property)
    for service, migrations in MIGRATIONS.items():
        later = later_than(migrations.head)
        assert [revision(outcome, turn, service) for turn in range(4)] == [migrations.head, later, later, later]
    assert {name: outcome.counts[f"{name} on a later schema"] for name in (*FIRST, *SECOND)} == dict.fromkeys(
        (*FIRST, *SECOND), 1
    )


def revision(outcome: Outcome, turn: int, service: str) -> str:
    """Of the schema of a service in this turn."""
    (found,) = [name for name in outcome.counts if name.startswith(f"turn {turn}: {service} at ")]
    return found.rpartition(" ")[2]
