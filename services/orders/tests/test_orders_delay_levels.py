"""Which delay level serves a remaining time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orders.domain.delay_levels import (
    DEFAULT_DELAYS_TEXT,
    DelayLevels,
    default_delay_levels,
    parse_delay_levels,
)

MINUTE_MS = 60_000
LEVELS = parse_delay_levels(DEFAULT_DELAYS_TEXT)
DEMO = default_delay_levels(10_000)


def test_the_default_levels_are_those_of_rocketmq() -> None:
    assert len(LEVELS.delays_ms) == 18
    assert (LEVELS.delays_ms[0], LEVELS.delays_ms[15], LEVELS.delays_ms[17]) == (1_000, 30 * MINUTE_MS, 7_200_000)


@pytest.mark.parametrize(
    ("remaining_ms", "level"),
    [
        (30 * MINUTE_MS, 16),  # on time
        (30 * MINUTE_MS - 999, 16),  # a hop later: nothing finer would close it sooner
        (30 * MINUTE_MS - 1_000, 15),  # late: 20 minutes, and the rest when those are over
        (10 * MINUTE_MS, 14),
        (59_000, 4),
        (1_000, 1),
        (1, 1),  # short of the finest delay: late by less than that
        (0, 0),  # due
        (-5_000, 0),
        (5 * 3_600_000, 18),  # longer than every level
    ],
)
def test_the_level_for_a_remaining_time(remaining_ms: int, level: int) -> None:
    assert LEVELS.choose(remaining_ms) == level


@pytest.mark.parametrize(
    ("remaining_ms", "level"), [(10_000, 16), (9_950, 16), (9_000, 2), (5_500, 2), (900, 1), (30_000, 4), (0, 0)]
)
def test_a_shortened_level_16_is_preferred_to_an_equal_level(remaining_ms: int, level: int) -> None:
    assert DEMO.choose(remaining_ms) == level


@given(st.integers(min_value=1, max_value=30 * MINUTE_MS), st.sampled_from([LEVELS, DEMO]))
def test_the_chosen_levels_add_up_to_the_remaining_time_with_less_than_the_finest_delay_too_much(
    remaining_ms: int, levels: DelayLevels
) -> None:
    rest_ms = remaining_ms
    while rest_ms > 0:
        rest_ms -= levels.delays_ms[levels.choose(rest_ms) - 1]
    assert -min(levels.delays_ms) < rest_ms <= 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [("1s 5s", "2 levels"), ("1s " * 17 + "5x", "'5x'"), ("0s " * 18, "'0s'"), ("", "0 levels"), ("1.5s " * 18, "1.5")],
)
def test_a_text_that_names_no_levels_is_rejected(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_delay_levels(text)
