"""Whatever goes wrong: the book is what was decided, and each event is told at least once, unless it never is."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from osenv import SimClock
from sandbox_gateway.domain import REORDERED_HOLD_MAX_MS, DeliveryError, Failures
from sandbox_gateway.gateway import Behaviour
from sandbox_gateway.sql import UnitOfWork
from sandbox_gateway.testing import RunningGateway, running_gateway
from sandbox_gateway.webhooks import BACKOFF_MAX_S
from servicekit.config import SQLITE_PREFIX
from servicekit.errors import StorageUnavailableError

LATE_MAX_S = 5
shares = st.sampled_from([0.0, 0.3, 0.6, 1.0])
failures = st.builds(
    Failures,
    declined=shares,
    late=shares,
    late_ms=st.integers(0, LATE_MAX_S * 1000),
    duplicated=shares,
    reordered=shares,
    never=st.sampled_from([0.0, 0.3]),
)
CHARGES, REFUNDS = ("a", "b", "c", "d"), ("r", "s", "t")
operation = st.one_of(
    st.tuples(st.just("charge"), st.sampled_from(CHARGES), st.sampled_from([1, 100, 101])),
    st.tuples(st.just("refund"), st.tuples(st.sampled_from(REFUNDS), st.sampled_from(CHARGES)), st.integers(1, 60)),
    st.tuples(st.just("failures"), failures, st.just(0)),
    st.tuples(st.just("time"), st.just(""), st.integers(0, 2_000)),
)
Operation = tuple[str, Any, int]
# What a process is asked, at which of its commits it dies, and whether it dies after it or before.
lives = st.lists(st.tuples(st.lists(operation, min_size=1, max_size=8), st.integers(1, 9), st.booleans()), max_size=3)
Life = tuple[list[Operation], int, bool]


@contextmanager
def dying(at_commit: int, is_after: bool) -> Iterator[Callable[[], bool]]:
    """Every unit of work dies from this commit on; yields whether that has happened."""
    commits = 0
    commit = UnitOfWork.commit

    async def commit_or_die(unit: UnitOfWork) -> None:
        nonlocal commits
        commits += 1
        if commits < at_commit or (commits == at_commit and is_after):
            await commit(unit)
        if commits >= at_commit:
            raise StorageUnavailableError("the process is gone")

    with mock.patch.object(UnitOfWork, "commit", commit_or_die):
        yield lambda: commits >= at_commit


class ForgetfulReceiver:
    """Takes, rejects, or takes and does not say so, as `script` says; then it takes everything."""

    def __init__(self, script: Sequence[str]) -> None:
        self.script = list(script)
        self.taken: list[bytes] = []

    async def deliver(self, body: bytes) -> None:
        step = self.script.pop(0) if self.script else "take"
        if step != "reject":
            self.taken.append(body)
        if step != "take":
            raise DeliveryError(step)


async def carry_out(gateway: RunningGateway, one: Operation) -> int:
    """The status of the answer, 202 where there is none."""
    kind, subject, number = one
    if kind == "charge":
        return (await gateway.charge(subject, amount_minor=number)).status_code
    if kind == "refund":
        return (await gateway.refund(*subject, amount_minor=number)).status_code
    if kind == "failures":
        gateway.application.behaviour.failures = subject
    else:
        await gateway.pass_time(number / 1000)
    return 202


async def rows(gateway: RunningGateway, query: str) -> list[dict[str, Any]]:
    async with gateway.database.snapshot() as connection:
        return [dict(row._mapping) for row in await connection.exec_driver_sql(query)]


async def check_book_and_events(gateway: RunningGateway, taken: list[bytes]) -> None:
    charges = await rows(gateway, "SELECT * FROM charges")
    refunds = await rows(gateway, "SELECT * FROM refunds")
    captured = [charge["amount_minor"] for charge in charges if charge["status"] == "captured"]
    assert (await gateway.http.get("/v1/book")).json() == {
        "captured_minor": sum(captured),
        "refunded_minor": sum(refund["amount_minor"] for refund in refunds),
        "captures": len(captured),
        "refunds": len(refunds),
    }
    for charge in charges:
        assert charge["status"] != "pending"
        own = [refund["amount_minor"] for refund in refunds if refund["charge_id"] == charge["charge_id"]]
        assert sum(own) == charge["refunds_minor"] <= charge["amount_minor"]
    assert {refund["status"] for refund in refunds} <= {"refunded"}
    webhooks = await rows(gateway, "SELECT * FROM webhooks")
    assert len(webhooks) == len(charges) + len(refunds)
    seen = Counter(json.loads(body)["event_id"] for body in taken)
    for webhook in webhooks:
        assert webhook["copies_sent"] == webhook["copies_wanted"]
        assert seen[webhook["event_id"]] >= webhook["copies_wanted"]
        assert webhook["copies_wanted"] > 0 or webhook["event_id"] not in seen
    assert set(taken) <= {webhook["body"].encode() for webhook in webhooks}, "an event is the same each time"


async def live(gateway: RunningGateway, life: Life) -> None:
    operations, at_commit, is_after = life
    with dying(at_commit, is_after) as is_dead, suppress(StorageUnavailableError):
        for one in operations:
            status = await carry_out(gateway, one)
            if is_dead():
                return
            assert status in (202, 409, 422)


async def play(folder: Path, all_lives: list[Life], answers: list[str], delay_ms: int) -> None:
    clock, receiver = SimClock(), ForgetfulReceiver(answers)
    url = f"{SQLITE_PREFIX}{folder / 'gateway.db'}"
    behaviour = Behaviour(delay_ms=delay_ms, declines_above_minor=100)
    for life in all_lives:
        async with running_gateway(url, behaviour=behaviour, receiver=receiver, clock=clock) as gateway:
            await live(gateway, life)
    receiver.script.clear()
    async with running_gateway(url, behaviour=behaviour, receiver=receiver, clock=clock) as gateway:
        await gateway.pass_time(LATE_MAX_S + REORDERED_HOLD_MAX_MS / 1000 + BACKOFF_MAX_S + delay_ms / 1000)
        await check_book_and_events(gateway, receiver.taken)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(lives, st.lists(st.sampled_from(["take", "reject", "take and forget"]), max_size=12), st.sampled_from([0, 50]))
def test_the_book_is_what_was_decided_and_everything_decided_is_told(
    all_lives: list[Life], answers: list[str], delay_ms: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), all_lives, answers, delay_ms))
