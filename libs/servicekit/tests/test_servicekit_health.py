"""Readiness: it says what is, within its time, and cannot be made to ask more than once at a time."""

from __future__ import annotations

import asyncio

from osenv import SimClock
from servicekit.monitoring import CHECK_MAX_S, OK, Health


async def well() -> str:
    return OK


async def ill() -> str:
    return "ill"


async def test_health_is_ready_when_every_part_says_ok() -> None:
    assert (await Health({"a": well}, SimClock()).report()).is_ready
    report = await Health({"a": well, "b": ill}, SimClock()).report()
    assert (report.is_ready, report.checks) == (False, {"a": "ok", "b": "ill"})


async def test_a_part_that_does_not_answer_is_said_so_in_time_beside_those_that_do() -> None:
    clock = SimClock()

    async def silent() -> str:
        await asyncio.Event().wait()
        raise AssertionError("this is never set")

    report = asyncio.ensure_future(Health({"silent": silent, "well": well, "mute": silent}, clock).report())
    await clock.advance(CHECK_MAX_S)  # once for all of them: they are asked together
    assert (await report).checks == {"silent": "no answer in 2 s", "well": "ok", "mute": "no answer in 2 s"}


async def test_a_check_that_fails_is_an_answer_that_tells_no_details() -> None:
    async def broken() -> str:
        raise ZeroDivisionError("secret")

    assert (await Health({"a": broken}, SimClock()).report()).checks == {"a": "the check failed: ZeroDivisionError"}


async def test_requests_at_the_same_time_share_one_report_and_the_next_one_asks_again() -> None:
    asked, go_on = 0, asyncio.Event()

    async def counting() -> str:
        nonlocal asked
        asked += 1
        await go_on.wait()
        return OK

    health = Health({"a": counting}, SimClock())
    reports = [asyncio.ensure_future(health.report()) for _ in range(5)]
    while not asked:  # noqa: ASYNC110 - the first step of the report
        await asyncio.sleep(0)
    reports[0].cancel()  # a client that goes away
    go_on.set()
    assert [report.is_ready for report in await asyncio.gather(*reports[1:])] == [True] * 4
    assert asked == 1
    assert (await health.report()).is_ready
    assert asked == 2
