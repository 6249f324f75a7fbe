"""The process dies at any step between request and end, is started again, and dies again: in the end the money was
moved once and told once.

Database and gateway are the real ones, on files; a restarted process is a new application on the same files, with the
same queue.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from osenv import SimClock
from payments.adapters.sandbox_gateway import SandboxGateway
from payments.adapters.sql_units import SqlUnitOfWork
from payments.domain.payment import Payment
from payments.domain.payment_status import PaymentStatus
from payments.service import events
from payments.service.gateway import Captured, Declined, GatewayBook, PaymentGateway, Refunded
from payments.testing import TOTAL_MINOR, RunningPayments, running_payments
from servicekit.message import OutgoingMessage
from servicekit.testing import ProcessDeathError, RecordingPublisher
from servicekit.transactions import LocalTransaction

# The calls of ports that paying and refunding make, in their order; the process can die at each.
STEPS = (
    "before the intent is committed",
    "after the intent is committed",
    "before the gateway's effect",
    "after the gateway's effect",
    "before the half message",
    "before the local transaction",
    "before the local transaction is committed",
    "after the local transaction is committed",
    "before the queue is told how it ended",
    "after the queue was told how it ended",
)
DEATHS = [pytest.param(number, id=what) for number, what in enumerate(STEPS, 1)]
MONEY_MOVED = STEPS.index("after the gateway's effect") + 1
WRITTEN_DOWN = STEPS.index("after the local transaction is committed") + 1


class Fuse:
    """Counts steps, and lets the process die at one of them."""

    def __init__(self, dies_at: int = 0) -> None:
        self.dies_at = dies_at
        self.steps = 0

    async def step(self, _what: str = "") -> None:
        self.steps += 1
        if self.steps == self.dies_at:
            raise ProcessDeathError


class FusedGateway:
    """Implements `PaymentGateway` with a step before and after each effect."""

    def __init__(self, inner: PaymentGateway, fuse: Fuse) -> None:
        self._inner = inner
        self._fuse = fuse

    async def capture(self, payment_id: str, amount_minor: int, currency: str) -> Captured | Declined:
        await self._fuse.step()
        answer = await self._inner.capture(payment_id, amount_minor, currency)
        await self._fuse.step()
        return answer

    async def refund(self, refund_id: str, payment_id: str, amount_minor: int, currency: str) -> Refunded:
        await self._fuse.step()
        answer = await self._inner.refund(refund_id, payment_id, amount_minor, currency)
        await self._fuse.step()
        return answer

    async def book(self) -> GatewayBook:
        return await self._inner.book()


class FusedQueue(RecordingPublisher):
    """A queue with a step at each end of sending, and around the local transaction."""

    def __init__(self) -> None:
        super().__init__()
        self.fuse = Fuse()

    async def send_in_transaction(self, message: OutgoingMessage, local: LocalTransaction) -> None:
        self.before_local = self.after_local = self.fuse.step
        await self.fuse.step()
        await super().send_in_transaction(message, local)
        await self.fuse.step()


class World:
    """What outlives a process: its folder and the queue."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self._monkeypatch = monkeypatch
        self._lives = 0
        self.queue = FusedQueue()
        self.clock = SimClock()

    @asynccontextmanager
    async def process(self, dies_at: int = 0) -> AsyncIterator[tuple[RunningPayments, Fuse]]:
        """One life of the process, which ends at the step `dies_at`."""
        self._lives += 1
        fuse = Fuse()
        self.queue.fuse = fuse
        commit = SqlUnitOfWork.commit

        async def fused_commit(unit: SqlUnitOfWork) -> None:
            await fuse.step()
            await commit(unit)
            await fuse.step()

        gateway = SandboxGateway(str(self._folder / "gateway.db"), self.clock)
        fused_gateway = FusedGateway(gateway, fuse)
        with self._monkeypatch.context() as patched:
            try:
                async with running_payments(
                    self._folder, gateway=fused_gateway, queue=self.queue, clock=self.clock, seed=self._lives
                ) as payments:
                    patched.setattr(SqlUnitOfWork, "commit", fused_commit)
                    fuse.dies_at = dies_at
                    yield payments, fuse
            finally:
                await gateway.close()

    async def live(self, act: Callable[[RunningPayments], Awaitable[object]], dies_at: int = 0) -> int:
        """One life that does `act`; returns how many steps it came."""
        async with self.process(dies_at) as (payments, fuse):
            try:
                await act(payments)
            except ProcessDeathError:
                assert fuse.steps == dies_at
            return fuse.steps


async def pay(payments: RunningPayments) -> Payment:
    return (await payments.pay("k")).payment


async def check_then_resume(payments: RunningPayments) -> None:
    await payments.check_back()
    assert await payments.application.resumer.resume() == 0


async def resume_then_check(payments: RunningPayments) -> None:
    assert await payments.application.resumer.resume() == 0
    await payments.check_back()


RECOVERIES = [check_then_resume, resume_then_check]


async def check_it_was_paid_once(world: World) -> None:
    async with world.process() as (payments, _):
        payment = await pay(payments)  # the client, which never got its answer, repeats its request
        assert payment.status is PaymentStatus.CAPTURED
        assert (await payments.application.use_cases.queries.payments(None, 10, None)).items == [payment]
        assert len(payments.told(events.SUCCEEDED_TAG)) == 1
        assert payments.queue.halves == {}
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)
        statistics = await payments.application.use_cases.queries.statistics()
        assert statistics.captured_minor == statistics.gateway.captured_minor
        history = await payments.application.use_cases.queries.history(payment.payment_id)
        assert [change.new_status for change in history] == [PaymentStatus.CREATED, PaymentStatus.CAPTURED]


@pytest.mark.parametrize("recover", RECOVERIES)
@pytest.mark.parametrize("dies_at", DEATHS)
async def test_a_payment_that_died_at_any_step_is_captured_once_and_told_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies_at: int,
    recover: Callable[[RunningPayments], Awaitable[None]],
) -> None:
    world = World(tmp_path, monkeypatch)
    await world.live(RunningPayments.open_order)
    assert await world.live(pay, dies_at) == dies_at
    await world.live(recover)
    await check_it_was_paid_once(world)


async def test_the_steps_are_all_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, monkeypatch)
    await world.live(RunningPayments.open_order)
    assert await world.live(pay) == len(STEPS)
    assert await world.live(request_refund) == len(STEPS)
    await check_it_was_refunded_once(world)


@pytest.mark.parametrize("recover", RECOVERIES)
@pytest.mark.parametrize("dies_at", [MONEY_MOVED, WRITTEN_DOWN])
async def test_a_payment_whose_recovery_dies_at_any_step_too_is_captured_once_and_told_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies_at: int,
    recover: Callable[[RunningPayments], Awaitable[None]],
) -> None:
    for dies_again_at in range(1, len(STEPS) + 1):
        folder = tmp_path / f"{dies_again_at}"
        folder.mkdir()
        world = World(folder, monkeypatch)
        await world.live(RunningPayments.open_order)
        await world.live(pay, dies_at)
        await world.live(recover, dies_again_at)
        await world.live(recover)
        await check_it_was_paid_once(world)


async def request_refund(payments: RunningPayments) -> None:
    (payment,) = (await payments.application.use_cases.queries.payments("order-1", 10, None)).items
    await payments.request_refund(payment)


async def check_it_was_refunded_once(world: World) -> None:
    async with world.process() as (payments, _):
        await request_refund(payments)  # the queue, which never got its answer, delivers the request again
        (payment,) = (await payments.application.use_cases.queries.payments(None, 10, None)).items
        assert payment.status is PaymentStatus.REFUNDED
        assert len(payments.told(events.SUCCEEDED_TAG)) == 1
        assert len(payments.told(events.REFUNDED_TAG)) == 1
        assert payments.queue.halves == {}
        assert await payments.gateway.book() == GatewayBook(TOTAL_MINOR, TOTAL_MINOR, 1, 1)
        statistics = await payments.application.use_cases.queries.statistics()
        assert statistics.refunded_minor == statistics.gateway.refunded_minor


@pytest.mark.parametrize("recover", RECOVERIES)
@pytest.mark.parametrize("dies_at", DEATHS)
async def test_a_refund_that_died_at_any_step_happens_once_and_is_told_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies_at: int,
    recover: Callable[[RunningPayments], Awaitable[None]],
) -> None:
    world = World(tmp_path, monkeypatch)
    await world.live(RunningPayments.open_order)
    await world.live(pay)
    assert await world.live(request_refund, dies_at) == dies_at
    await world.live(recover)
    await world.live(request_refund)
    await world.live(RunningPayments.check_back)
    await check_it_was_refunded_once(world)
