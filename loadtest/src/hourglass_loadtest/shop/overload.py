"""`python -m hourglass_loadtest overload`: what the shop can sustain, and what is left of it at twice as much.

The rate climbs by a third from step to step, until a step is not sustained; one step more lies between the last two.
Sustained is a step in which one order of a hundred at most was rejected or took more than a second from when it was
intended; one that is not is tried once more, because other things run on a machine. Then the load is twice what was
sustained. When far more is placed then than in any step, the climb has ended too early, and goes on from there.
Goodput is orders placed a second.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from hourglass_loadtest.measure.clients import percentile
from hourglass_loadtest.run import RunError
from hourglass_loadtest.shop.load import document_of, one_load, verdict, window_s, write_report
from hourglass_loadtest.shop.options import LoadOptions, Target, target_of
from hourglass_loadtest.shop.summary import (
    Evidence,
    complaints,
    lags,
    latency_ms,
    orders_per_s,
    rejected_share,
    summarize,
    wait_for_the_end,
)
from hourglass_loadtest.users.plan import PLACE_ORDER, Stage
from hourglass_local.waiting import NotInTimeError, eventually
from mqclient import Admin

CLIMB_SECONDS, CLIMB_FACTOR, STEPS_MAX = 12.0, 4 / 3, 12
TIMES = 2.0
TRIES, CLIMBS_MAX = 2, 3
ENDED_TOO_EARLY = 1.25  # times the best step
SHARE_WANTED = 0.8
P99_MAX_S, REJECTED_MAX_SHARE = 1.0, 0.01
LEAD_S = 3.0  # of a step, which is not counted: the first visits, and what Locust needs to start
QUIET_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Step:
    """What one rate came to."""

    visits_per_s: float
    orders_per_s: float
    p99_ms: float
    rejected_share: float
    sustained: bool


async def run_overload(
    options: LoadOptions, console: Console, *, seconds: float, first: float, climb: float = CLIMB_SECONDS
) -> int:
    """The exit code: 1 when too little is left at twice the rate, or something is wrong. Raises RunError and others."""
    async with target_of(options, console) as target:
        begun = time.time()
        steps: list[Step] = []
        wrong: list[str] = []
        for _ in range(CLIMBS_MAX):
            await _climb(target, options, console, Stage(first, climb), steps=steps, wrong=wrong)
            sustained = max((step.visits_per_s for step in steps if step.sustained), default=0.0)
            if not sustained:
                raise RunError(f"{first:g} visits a second are not sustained; begin with fewer (--rate)")
            stages = [Stage(sustained, climb), Stage(TIMES * sustained, seconds), Stage(sustained / 2, climb)]
            options = replace(options, stages=stages)
            console.print(
                f"Sustained: {sustained:g}/s; now {TIMES * sustained:g}/s for {seconds:g} s.", highlight=False
            )
            evidence = await one_load(target, options, stages, console)
            found = overload_results(evidence, steps, climb, seconds)
            if found["share_of_peak"] <= ENDED_TOO_EARLY:
                break
            console.print(f"{found['share_of_peak']:.0%} of the best step: the climb goes on there.", highlight=False)
            await _quiet(target)
            first = TIMES * sustained
        evidence.ending = await wait_for_the_end(target, begun, window_s(options))
        description = target.description
    document = document_of("overload", options, description, summarize(evidence) | {"overload": found})
    write_report(options, document, [evidence], console)
    console.print(
        f"{found['goodput_orders_per_s']:.1f} orders/s at twice the sustainable rate:"
        f" {found['share_of_peak']:.0%} of the peak of {found['peak_orders_per_s']:.1f}.",
        highlight=False,
    )
    too_little = [] if found["share_of_peak"] >= SHARE_WANTED else [f"less than {SHARE_WANTED:.0%} of the peak is left"]
    return verdict([*wrong, *complaints(evidence), *found["refusals_that_say_too_little"], *too_little], console)


async def _climb(
    target: Target, options: LoadOptions, console: Console, first: Stage, *, steps: list[Step], wrong: list[str]
) -> None:
    """Add what each step came to."""

    async def is_sustained(rate: float) -> bool:
        for _ in range(TRIES):
            steps.append(await _step(target, options, console, Stage(rate, first.seconds), wrong))
            if steps[-1].sustained:
                return True
        return False

    good, rate = 0.0, first.visits_per_s
    for _ in range(STEPS_MAX):
        if not await is_sustained(rate):
            break
        good, rate = rate, _round(rate * CLIMB_FACTOR)
    if good and not steps[-1].sustained:
        await is_sustained(_round(math.sqrt(good * rate)))


async def _step(target: Target, options: LoadOptions, console: Console, stage: Stage, wrong: list[str]) -> Step:
    rate, seconds = stage.visits_per_s, stage.seconds
    evidence = await one_load(target, options, [stage], console, finish_s=2.0, tries=1)
    wrong += evidence.records.wrong
    step = step_of(evidence, rate, seconds)
    console.print(
        f"{rate:6g} visits/s: {step.orders_per_s:.1f} orders/s, p99 {step.p99_ms:.0f} ms, rejected"
        f" {step.rejected_share:.1%}{'' if step.sustained else ': not sustained'}",
        highlight=False,
    )
    await _quiet(target)
    return step


def step_of(evidence: Evidence, rate: float, seconds: float) -> Step:
    """Of the whole step but its first seconds."""
    lead_s = min(LEAD_S, seconds / 2)
    requests = evidence.between(lead_s, seconds)
    waited = [one.since_intended for one in requests if one.name == PLACE_ORDER and one.is_new]
    p99_s = percentile(waited, 99) if waited else math.inf
    rejected = rejected_share(requests)
    sustained = p99_s <= P99_MAX_S and rejected <= REJECTED_MAX_SHARE
    p99_ms = p99_s * 1000 if waited else 0.0
    return Step(
        rate, round(orders_per_s(evidence, lead_s, seconds), 2), round(p99_ms, 1), round(rejected, 4), sustained
    )


def overload_results(evidence: Evidence, steps: Sequence[Step], climb: float, seconds: float) -> dict[str, Any]:
    """The middle stage against the climb; its first seconds do not count."""
    begin, end = climb + min(LEAD_S, seconds / 2), climb + seconds
    goodput = orders_per_s(evidence, begin, end)
    peak = max(step.orders_per_s for step in steps)
    rejected = [one for one in evidence.between(climb, end) if one.is_rejected]
    silent = sum(" " not in one.answer or not one.retry_after for one in rejected)
    return {
        "steps": [asdict(step) for step in steps],
        "sustainable_visits_per_s": max(step.visits_per_s for step in steps if step.sustained),
        "times": TIMES,
        "peak_orders_per_s": peak,
        "goodput_orders_per_s": round(goodput, 2),
        "share_of_peak": round(goodput / peak, 4) if peak else 0.0,
        "refused": len(rejected),
        "refusals": dict(Counter(one.answer for one in rejected).most_common()),
        "refused_after_ms": latency_ms([one.seconds for one in rejected]),
        "retry_after_s": sorted({one.retry_after for one in rejected if one.retry_after}),
        "refusals_that_say_too_little": [f"{silent} rejections lack a reason or Retry-After"] if silent else [],
    }


async def _quiet(target: Target) -> None:
    """Until the groups have caught up, or for QUIET_MAX_S: a step is not to pay for the one before."""
    if target.queue_url is None:
        return
    async with Admin(target.queue_url) as admin:

        async def caught_up() -> bool:
            return not any((await lags(admin)).values())

        with contextlib.suppress(NotInTimeError):  # then the next step has more to do, and its figures say so
            await eventually(caught_up, QUIET_MAX_S, interval_s=1.0)


def _round(rate: float) -> float:
    return round(rate * 2) / 2
