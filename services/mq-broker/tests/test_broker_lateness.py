"""The histogram of how late deliveries are, beside the sorted list of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mq_broker.core.delays import Lateness
from osenv import SeededRng

VALUES = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 5_000), st.integers(0, 1 << 40)), min_size=1)
SHARES = (0.0, 0.5, 0.9, 0.99, 0.999, 1.0)


def counted(values: list[int]) -> Lateness:
    lateness = Lateness()
    lateness.add(values)
    return lateness


@settings(max_examples=200, deadline=None)
@given(VALUES, st.sampled_from(SHARES))
def test_a_quantile_is_the_true_one_or_an_eighth_more(values: list[int], share: float) -> None:
    true_ms = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    found_ms = counted(values).quantile_ms(share)
    assert true_ms <= found_ms <= true_ms + true_ms // 8


@pytest.mark.parametrize("value", range(16))
def test_up_to_15_ms_every_millisecond_is_told_apart(value: int) -> None:
    assert counted([value, value, value + 1_000]).quantile_ms(0.5) == value


def test_nothing_was_counted() -> None:
    assert (Lateness().count, Lateness().max_ms, Lateness().quantile_ms(0.99)) == (0, 0, 0)


def test_no_quantile_is_above_the_latest() -> None:
    lateness = counted([1_000])
    assert [lateness.quantile_ms(share) for share in SHARES] == [1_000] * len(SHARES)
    assert lateness.max_ms == 1_000


def test_what_is_early_counts_as_0() -> None:
    assert counted([-5, -1]).quantile_ms(1.0) == 0
    assert counted([-5, -1]).max_ms == 0


def test_a_year_late_takes_a_few_hundred_classes() -> None:
    rng = SeededRng(1)
    lateness = counted([rng.randrange(0, 366 * 86_400_000) for _ in range(10_000)])
    assert len(lateness._counts) < 300
    assert lateness.count == 10_000
