"""Figure G3 in small: five kills of a real broker; and the comparison itself sees each kind of wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from kills import run_kills
from numbered_load import Book, Sent, problems


@pytest.mark.processes
@pytest.mark.parametrize(("seed", "kills"), [(1, 3), (2, 2)], ids=["sync flush", "async flush"])
async def test_a_broker_killed_under_load_keeps_everything_acknowledged(tmp_path: Path, seed: int, kills: int) -> None:
    outcome = await run_kills(tmp_path, seed, kills)
    assert outcome.violations == (), f"again: .venv/bin/python tests/robustness/runner.py --replay kills {seed}"
    assert outcome.executed == kills
    assert outcome.counts["acknowledged"] >= kills


def book() -> Book:
    """Sender 1 got an answer for messages 1 and 2, and none for 3; 4 and 5 went out together."""
    made = Book()
    for burst, number in ((1, 1), (2, 2), (3, 3), (4, 4), (4, 5)):
        body = f"1:{number}:x".encode()
        sent = made.tried[body] = Sent(1, burst, body)
        if number < 3:
            made.acknowledge((0, number - 1), sent)
    return made


def stored(*numbers: int) -> dict[int, list[tuple[int, bytes]]]:
    return {0: [(offset, f"1:{number}:x".encode()) for offset, number in enumerate(numbers)]}


@pytest.mark.parametrize("numbers", [(1, 2), (1, 2, 3), (1, 2, 4), (1, 2, 3, 5, 4)])
def test_what_was_acknowledged_has_to_be_there_and_the_rest_may(numbers: tuple[int, ...]) -> None:
    assert problems(book(), stored(*numbers)) == []


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ((1,), "1:2 was acknowledged at queue and offset (0, 1), and nothing is there"),
        ((2, 1), "1:1 was acknowledged at queue and offset (0, 0), and there is 1:2"),
        ((1, 2, 9), "queue 0, offset 2: never sent '1:9'"),
        ((1, 2, 2), "queue 0, offset 2: 1:2 stands there for the second time"),
        ((1, 2, 4, 3), "queue 0, offset 3: 1:3 stands behind 1:4"),
    ],
)
def test_what_is_lost_moved_invented_doubled_or_out_of_order_is_seen(numbers: tuple[int, ...], sentence: str) -> None:
    assert any(sentence in problem for problem in problems(book(), stored(*numbers)))


def test_a_gap_in_the_offsets_and_a_place_told_twice_are_seen() -> None:
    twice = book()
    twice.acknowledge((0, 1), twice.tried[b"1:3:x"])
    assert "1:2 and 1:3 were both told queue and offset (0, 1)" in problems(twice, stored(1, 2))
    gap = {0: [(0, b"1:1:x"), (1, b"1:2:x"), (3, b"1:3:x")]}
    assert "queue 0: the offsets are from 3 on out of step, not 0 to 2" in problems(book(), gap)
