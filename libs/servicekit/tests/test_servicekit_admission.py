"""Requests in work, their waits, and the ones that are told to come back; on a clock that is moved."""

from __future__ import annotations

import asyncio
from collections import Counter
from random import Random

import pytest

from osenv import SimClock
from osenv.sim_clock import settle
from servicekit.http.limits import (
    DEFAULT_ADMISSION_LIMIT,
    Admission,
    AdmissionLimit,
    Kind,
    OverloadedError,
    Ticket,
    parse_admission_limit,
)

READ, WRITE = Kind.READ, Kind.WRITE


class Gate:
    """Requests by name; `log` says in which order they got a place, or were rejected."""

    def __init__(self, requests: int = 4, wait_ms: int = 500) -> None:
        self.clock = SimClock()
        self.admission = Admission(AdmissionLimit(requests, wait_ms), self.clock)
        self.tickets: dict[str, Ticket] = {}
        self.rejections: dict[str, OverloadedError] = {}
        self.log: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, *names: str, kind: Kind = WRITE) -> None:
        for name in names:
            self.tasks[name] = asyncio.create_task(self._enter(name, kind))
            await settle()

    async def leave(self, name: str) -> None:
        self.tickets.pop(name).leave()
        await settle()

    async def _enter(self, name: str, kind: Kind) -> None:
        try:
            self.tickets[name] = await self.admission.enter(kind)
        except OverloadedError as error:
            self.rejections[name] = error
            return
        self.log.append(name)


def test_a_limit_is_two_numbers_or_off() -> None:
    assert parse_admission_limit("16/500") == DEFAULT_ADMISSION_LIMIT == AdmissionLimit(16, 500)
    assert parse_admission_limit("off") is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("16", "allowed is requests/milliseconds, such as 16/500, or off"),
        ("16/", "allowed is"),
        ("a/500", "allowed is"),
        ("16/-1", "allowed is"),
        ("١٦/500", "allowed is"),
        ("0/500", "1 to 1000 requests may be in work at once, not 0"),
        ("1001/500", "not 1001"),
        ("16/0", "a request may wait for 1 to 60000 ms, not 0"),
        ("16/60001", "not 60001"),
    ],
)
def test_a_limit_that_is_none_is_rejected_with_what_is_allowed(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        parse_admission_limit(text)


async def test_requests_without_a_place_wait_and_go_on_in_the_order_in_which_they_came() -> None:
    gate = Gate(requests=4)  # three of them for one kind
    await gate.come("a", "b", "c", "d", "e")
    assert (gate.log, gate.admission.in_work, gate.admission.waiting) == (["a", "b", "c"], 3, 2)
    await gate.leave("b")
    assert gate.log == ["a", "b", "c", "d"]
    await gate.leave("a")
    assert gate.log == ["a", "b", "c", "d", "e"]
    for name in ("c", "d", "e"):
        await gate.leave(name)
    assert (gate.admission.in_work, gate.admission.waiting, gate.clock.timers) == (0, 0, 0)


async def test_a_place_is_given_back_once() -> None:
    gate = Gate()
    await gate.come("a", "b")
    ticket = gate.tickets["a"]
    ticket.leave()
    ticket.leave()
    assert gate.admission.in_work == 1


async def test_a_burst_waits_and_what_waits_too_long_is_rejected_with_the_reason() -> None:
    gate = Gate(wait_ms=500)
    await gate.come("a", "b", "c", "d")
    await gate.clock.advance(0.499)
    assert gate.rejections == {}
    await gate.clock.advance(0.001)
    (rejection,) = gate.rejections.values()
    assert str(rejection) == (
        "no place for a write request became free in 500 ms: 3 are in work, which is what can be done"
    )
    assert (rejection.retry_after_s, gate.admission.waiting) == (1, 0)


async def test_in_a_line_that_stands_patience_is_a_tenth_until_a_request_finds_a_place_at_once() -> None:
    gate = Gate(wait_ms=500)
    await gate.come("a", "b", "c", "d")
    await gate.clock.advance(0.5)
    assert gate.admission.patience_s(WRITE) == 0.05
    assert gate.admission.patience_s(READ) == 0.5  # reads do not stand
    await gate.come("e")
    await gate.clock.advance(0.05)
    assert "became free in 50 ms" in str(gate.rejections["e"])
    await gate.come("f")
    await gate.leave("a")
    assert gate.log[-1] == "f"
    assert gate.admission.patience_s(WRITE) == 0.05  # it has waited: there is still too much
    await gate.leave("b")
    await gate.come("g")
    assert gate.log[-1] == "g"
    assert gate.admission.patience_s(WRITE) == 0.5


async def test_each_kind_leaves_a_quarter_of_the_places_to_the_other() -> None:
    gate = Gate(requests=8)
    await gate.come(*(f"w{number}" for number in range(9)))
    assert gate.admission.in_work == 6
    await gate.come("r0", "r1", "r2", kind=READ)
    assert [name for name in gate.log if name.startswith("r")] == ["r0", "r1"]
    assert (gate.admission.in_work, gate.admission.waiting) == (8, 4)


async def test_a_single_place_is_for_both_kinds() -> None:
    gate = Gate(requests=1)
    await gate.come("r", kind=READ)
    await gate.come("w")
    await gate.leave("r")
    assert gate.log == ["r", "w"]


async def test_writes_go_before_reads_that_came_earlier() -> None:
    gate = Gate(requests=2)
    await gate.come("r1", "r2", kind=READ)
    await gate.come("w1", "w2")
    await gate.come("r3", kind=READ)
    assert gate.log == ["r1", "r2"]
    await gate.leave("r1")
    await gate.leave("r2")
    assert gate.log == ["r1", "r2", "w1", "w2"]
    await gate.leave("w1")
    assert gate.log[-1] == "r3"


async def test_a_line_has_an_end() -> None:
    gate = Gate(requests=1)
    await gate.come("in work", *(f"waiting {number}" for number in range(16)))
    assert gate.rejections == {}
    await gate.come("one too many")
    assert str(gate.rejections["one too many"]).startswith("16 write requests wait already")


@pytest.mark.parametrize(("rejected", "spread_s"), [(3, 2), (12, 6), (36, 17), (60, 28)])
async def test_as_many_come_back_as_will_be_carried_out_and_not_all_at_once(rejected: int, spread_s: int) -> None:
    """23 were carried out lately; so many are in ten seconds."""
    gate = Gate(requests=4, wait_ms=500)
    for number in range(20):
        await gate.come(f"carried out {number}")
        await gate.leave(f"carried out {number}")
    names = [f"late {number}" for number in range(rejected)]
    await gate.come("a", "b", "c", *names)
    await gate.clock.advance(0.5)
    told = Counter(gate.rejections[name].retry_after_s for name in names)
    assert sum(told.values()) == rejected
    assert min(told) == 1
    assert 0.5 * spread_s <= max(told) <= spread_s
    assert max(told.values()) <= 1 + rejected // 2


async def test_rejections_of_long_ago_are_forgotten() -> None:
    gate = Gate(requests=4, wait_ms=500)
    await gate.come("a", "b", "c", *(f"late {number}" for number in range(40)))
    await gate.clock.advance(0.5)
    assert max(rejection.retry_after_s for rejection in gate.rejections.values()) > 10
    for name in "abc":
        await gate.leave(name)
    await gate.clock.advance(120)
    await gate.come("d", "e", "f", "g", "h")
    await gate.clock.advance(0.5)
    assert all(gate.rejections[name].retry_after_s <= 10 for name in "gh")


async def test_a_request_that_is_cancelled_while_waiting_takes_no_place() -> None:
    gate = Gate(requests=1)
    await gate.come("a", "b", "c")
    gate.tasks["b"].cancel()
    await settle()
    await gate.leave("a")
    assert gate.log == ["a", "c"]
    await gate.leave("c")
    assert (gate.admission.in_work, gate.clock.timers) == (0, 0)


async def test_a_request_that_is_cancelled_just_when_it_gets_its_place_gives_it_back() -> None:
    gate = Gate(requests=1)
    await gate.come("a", "b", "c")
    gate.tickets.pop("a").leave()  # b has the place, and has not heard of it
    gate.tasks["b"].cancel()
    await settle()
    assert gate.log == ["a", "c"]
    assert gate.admission.in_work == 1


async def test_a_place_that_becomes_free_in_the_moment_of_giving_up_is_not_lost() -> None:
    gate = Gate(requests=1, wait_ms=500)
    await gate.come("a", "b")
    gate.clock.call_later(0.5, gate.tickets["a"].leave)  # after b's own timer, at the same time
    await gate.clock.advance(0.5)
    assert "b" in gate.rejections
    assert gate.admission.in_work == 0
    await gate.come("c")
    assert gate.log == ["a", "c"]


@pytest.mark.parametrize("seed", range(20))
async def test_whatever_comes_and_goes_the_invariants_hold(seed: int) -> None:
    rng = Random(seed)
    gate = Gate(requests=rng.randint(1, 9), wait_ms=rng.choice([1, 50, 500]))
    limit, admission = gate.admission.limit, gate.admission
    kinds: dict[str, Kind] = {}
    for number in range(300):
        deed = rng.random()
        if deed < 0.55:
            kinds[str(number)] = rng.choice(list(Kind))
            await gate.come(str(number), kind=kinds[str(number)])
        elif deed < 0.8 and gate.tickets:
            await gate.leave(rng.choice(sorted(gate.tickets)))
        elif deed < 0.85 and gate.tasks:
            gate.tasks[rng.choice(sorted(gate.tasks))].cancel()
            await settle()
        else:
            await gate.clock.advance(rng.choice([0.0, 0.01, 0.06, 0.6]))
        held = Counter(kinds[name] for name in gate.tickets)
        assert admission.in_work == held.total() <= limit.requests
        assert max(held.values(), default=0) <= limit.per_kind
        if admission.waiting:
            assert held.total() == limit.requests or limit.per_kind in held.values()
    for name in list(gate.tickets):
        await gate.leave(name)
    while gate.tickets:
        await gate.leave(next(iter(gate.tickets)))
    await gate.clock.advance(1.0)
    assert (admission.in_work, admission.waiting, gate.clock.timers) == (0, 0, 0)


async def test_twice_the_work_that_can_be_done_keeps_every_place_taken_and_no_request_late() -> None:
    """100 places a second, 200 requests a second: all that can be done is done, and waits 50 ms at most."""
    clock = SimClock()
    admission = Admission(AdmissionLimit(4, 500), clock)
    waited: list[float] = []
    rejected: list[float] = []

    async def request() -> None:
        begin = clock.monotonic()
        try:
            ticket = await admission.enter(WRITE)
        except OverloadedError:
            rejected.append(clock.monotonic() - begin)
            return
        waited.append(clock.monotonic() - begin)
        await clock.sleep(0.03)  # three places for writes
        ticket.leave()

    tasks = []
    for _ in range(2_000):  # ten seconds
        tasks.append(asyncio.create_task(request()))
        await clock.advance(0.005)
    await clock.advance(1.0)
    await asyncio.gather(*tasks)
    assert len(waited) + len(rejected) == 2_000
    assert len(waited) > 0.97 * 1_000
    settled = waited[200:]  # the burst in the beginning is waited out
    assert max(settled) <= 0.050001
    assert max(rejected[200:]) == pytest.approx(0.05)
