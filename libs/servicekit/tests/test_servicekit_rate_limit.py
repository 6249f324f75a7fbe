"""The limit on requests: what is counted, for which caller, and how much is remembered."""

from __future__ import annotations

import pytest

from osenv import SimClock
from servicekit.http.limits import RateLimit, RequestCounter, Standing, parse_rate_limit


@pytest.mark.parametrize(("text", "limit"), [("600/60", RateLimit(600, 60)), ("1/1", RateLimit(1, 1)), ("off", None)])
def test_a_limit_is_read(text: str, limit: RateLimit | None) -> None:
    assert parse_rate_limit(text) == limit


@pytest.mark.parametrize(
    "text", ["", "600", "600/", "/60", "0/60", "600/0", "-1/60", "6.5/60", "a/b", "²/1", "1/1/1", "OFF"]
)
def test_what_is_no_limit_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed is|at least 1"):
        parse_rate_limit(text)


async def test_a_caller_is_served_so_often_in_a_window_that_begins_with_the_first_request() -> None:
    clock = SimClock()
    counter = RequestCounter(RateLimit(2, 10), clock)
    assert counter.count("a") == Standing(True, 1, 10)
    await clock.advance(4.5)
    assert counter.count("a") == Standing(True, 0, 6)
    assert counter.count("a") == Standing(False, 0, 6)
    assert counter.count("b") == Standing(True, 1, 10)
    await clock.advance(5.4)
    assert counter.count("a") == Standing(False, 0, 1)  # never 0 seconds: Retry-After 0 would be rejected again
    await clock.advance(0.1)
    assert counter.count("a") == Standing(True, 1, 10)


async def test_a_wall_clock_that_jumps_changes_nothing() -> None:
    clock = SimClock()
    counter = RequestCounter(RateLimit(1, 10), clock)
    counter.count("a")
    clock.set_wall_ms(clock.wall_ms() + 3_600_000)
    assert not counter.count("a").is_allowed


async def test_windows_that_are_over_are_forgotten_and_their_number_is_bounded() -> None:
    clock = SimClock()
    counter = RequestCounter(RateLimit(1, 10), clock, callers_max=100)
    for n in range(150):
        counter.count(str(n))
    assert counter.callers == 100
    assert not counter.count("149").is_allowed
    assert counter.count("0").is_allowed  # forgotten: the price of a bound
    await clock.advance(10)
    counter.count("new")
    assert counter.callers == 1
