"""The reconciler: bounded looks, findings that hold up no others, and repairs that are not repeated at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from osenv import SimClock
from servicekit.errors import RejectedError, StorageUnavailableError
from servicekit.process.reconciler import FAILURES_MAX, REPEAT_AFTER_S, Finding, Reconciled, Reconciler, Sweep


class Wrong:
    """Implements `Check` over names that are wrong; those in `stubborn` cannot be put right."""

    def __init__(self, *names: str, stubborn: Sequence[str] = (), page: int = 100) -> None:
        self.names = list(names)
        self.stubborn = set(stubborn)
        self.waiting: set[str] = set()
        self.repaired: list[str] = []
        self.is_away = False
        self.has_more = False
        self.asked = 0
        self._page = page
        self._place = 0

    async def find(self, limit: int) -> list[Finding]:
        self.asked += 1
        if self.is_away:
            raise StorageUnavailableError("the database is away")
        names = self.names[self._place : self._place + min(limit, self._page)]
        self._place += len(names)
        self.has_more = self._place < len(self.names)
        if not self.has_more:
            self._place = 0
        return [self._finding(name) for name in names]

    def _finding(self, name: str) -> Finding:
        async def repair() -> bool:
            if name in self.stubborn:
                raise RejectedError("no")
            if name in self.waiting:
                return False
            self.repaired.append(name)
            return True

        return Finding(name, repair)


def reconciler_of(*checks: Wrong, clock: SimClock | None = None, rows_max: int = 100) -> Reconciler:
    return Reconciler(checks, clock or SimClock(), interval_s=30, rows_max=rows_max)


async def test_what_cannot_be_put_right_holds_up_nothing_else() -> None:
    first, away, last = Wrong("a", "b", "c", stubborn=["b"]), Wrong("d"), Wrong("e")
    away.is_away = True
    with capture_logs() as lines:
        await reconciler_of(first, away, last).round()
    assert (first.repaired, away.repaired, last.repaired) == (["a", "c"], [], ["e"])
    assert [line["error"] for line in lines if "failures" in line] == ["b: no", "the database is away"]


async def test_a_check_of_which_everything_fails_ends_early() -> None:
    names = [str(number) for number in range(FAILURES_MAX + 5)]
    check = Wrong(*names, stubborn=names[:-1])
    found = await reconciler_of(check).reconcile(is_dry_run=False)
    assert (len(found.found), len(found.errors)) == (0, FAILURES_MAX)


async def test_what_was_put_right_is_left_alone_for_a_while() -> None:
    clock = SimClock()
    check = Wrong("a")
    reconciler = reconciler_of(check, clock=clock)
    await reconciler.round()
    await clock.advance(REPEAT_AFTER_S - 1)
    await reconciler.round()
    assert check.repaired == ["a"]
    await clock.advance(1)
    await reconciler.round()
    assert check.repaired == ["a", "a"]


async def test_what_had_to_wait_is_looked_at_again_in_the_next_round() -> None:
    check = Wrong("a")
    check.waiting.add("a")
    reconciler = reconciler_of(check)
    with capture_logs() as lines:
        await reconciler.round()
    assert (check.repaired, lines) == ([], [])
    check.waiting.clear()
    await reconciler.round()
    assert check.repaired == ["a"]


@pytest.mark.parametrize("is_dry_run", [True, False])
async def test_a_whole_run_sees_everything_and_a_dry_one_changes_nothing(*, is_dry_run: bool) -> None:
    check = Wrong("a", "b", "c", "d", "e", page=2)
    found = await reconciler_of(check).reconcile(is_dry_run=is_dry_run)
    assert found == Reconciled(("a", "b", "c", "d", "e"), ())
    assert check.repaired == ([] if is_dry_run else ["a", "b", "c", "d", "e"])


async def test_it_makes_a_round_each_interval_until_it_is_stopped() -> None:
    clock, check = SimClock(), Wrong()
    reconciler = reconciler_of(check, clock=clock)
    running = asyncio.create_task(reconciler.run())
    await clock.advance(29)
    assert check.asked == 0
    for rounds in (1, 2):
        await clock.advance(30)
        assert check.asked == rounds
    reconciler.stop()
    await running
    assert check.asked == 2


async def test_a_sweep_reads_the_newest_each_time_and_everything_at_last() -> None:
    numbers = list(range(10, 0, -1))
    limits: list[int] = []

    async def page(after: int | None, limit: int) -> list[int]:
        limits.append(limit)
        return [number for number in numbers if after is None or number < after][:limit]

    sweep = Sweep(page)
    looks = [(await sweep.next(3), sweep.has_more) for _ in range(3)]
    assert looks == [
        ([10, 9, 8, 7, 6, 5], True),
        ([10, 9, 8, 4, 3, 2], True),
        ([10, 9, 8, 1], False),
    ]
    numbers[:] = [12, 11]
    assert (await sweep.next(3), sweep.has_more) == ([12, 11], False)
    assert set(limits) == {3}
