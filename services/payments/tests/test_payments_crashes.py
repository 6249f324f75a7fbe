"""The process dies at any step between request and end, is started again, and dies again: in the end the money was
moved once, booked once and told once. The gateway decides at once, or later and tells by its webhook.

The database is a real one; the gateway and the queue outlive the process, as other systems do. A restarted process is a
new application on the same database.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from osenv import SimClock
from payments.adapters.sql_unit_of_work import SqlUnitOfWork
from payments.domain.payment import Payment, PaymentStatus
from payments.service import events
from payments.service.gateway import (
    Captured,
    ChargeRequest,
    Declined,
    GatewayBook,
    PaymentGateway,
    Pending,
    Refunded,
    RefundOrder,
)
from payments.testing import TOTAL_MINOR, RunningPayments, ScriptedGateway, Step, running_payments
from servicekit.message import OutgoingMessage
from servicekit.sql.units import LocalTransaction
from servicekit.testing import ProcessDeathError, RecordingPublisher
from servicekit.testing.databases import NewDatabaseUrl

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
        self.find_charge = inner.find_charge
        self.find_refund = inner.find_refund
        self.book = inner.book

    async def charge(self, request: ChargeRequest) -> Pending | Captured | Declined:
        await self._fuse.step()
        answer = await self._inner.charge(request)
        await self._fuse.step()
        return answer

    async def refund(self, order: RefundOrder) -> Pending | Refunded:
        await self._fuse.step()
        answer = await self._inner.refund(order)
        await self._fuse.step()
        return answer


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
    """What outlives a process: its database, the gateway and the queue."""

    def __init__(self, database_url: str, monkeypatch: pytest.MonkeyPatch, otherwise: Step) -> None:
        self._database_url = database_url
        self._monkeypatch = monkeypatch
        self._lives = 0
        self.queue = FusedQueue()
        self.clock = SimClock()
        self.gateway = ScriptedGateway(self.clock, otherwise=otherwise)

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

        gateway = FusedGateway(self.gateway, fuse)
        with self._monkeypatch.context() as patched:
            async with running_payments(
                self._database_url, gateway=gateway, queue=self.queue, clock=self.clock, seed=self._lives
            ) as payments:
                patched.setattr(SqlUnitOfWork, "commit", fused_commit)
                fuse.dies_at = dies_at
                yield payments, fuse

    async def live(self, act: Callable[[World, RunningPayments], Awaitable[object]], dies_at: int = 0) -> int:
        """One life that does `act`; returns how many steps it came."""
        async with self.process(dies_at) as (payments, fuse):
            try:
                await act(self, payments)
            except ProcessDeathError:
                assert fuse.steps == dies_at
            return fuse.steps


# What a process does in one life, or what others do to it.
Act = Callable[[World, RunningPayments], Awaitable[object]]


async def open_order(_world: World, payments: RunningPayments) -> None:
    await payments.open_order()


async def deliver_webhooks(world: World, payments: RunningPayments) -> None:
    """The gateway decides what is left to decide, and tells everything that it ever decided, as it may."""
    for its_id in (*world.gateway.charges, *world.gateway.refunds):
        event = world.gateway.decide(its_id) if _pends(world.gateway, its_id) else world.gateway.event_of(its_id)
        assert (await payments.webhook(event)).status_code == 200


def _pends(gateway: ScriptedGateway, its_id: str) -> bool:
    known = gateway.refunds.get(its_id) or gateway.charges[its_id]
    return isinstance(known[1], Pending)


async def pay(world: World, payments: RunningPayments) -> Payment:
    payment = (await payments.pay("k")).payment
    if payment.status is PaymentStatus.CREATED:
        await deliver_webhooks(world, payments)
        payment = (await payments.pay("k")).payment
    return payment


async def check_then_resume(world: World, payments: RunningPayments) -> None:
    await payments.check_back()
    assert await payments.application.resumer.resume() == 0
    await deliver_webhooks(world, payments)


async def resume_then_check(world: World, payments: RunningPayments) -> None:
    assert await payments.application.resumer.resume() == 0
    await deliver_webhooks(world, payments)
    await payments.check_back()


async def silence_then_check(world: World, payments: RunningPayments) -> None:
    """The gateway decides and its webhooks never come: the resumer asks."""
    assert await payments.application.resumer.resume() == 0
    for its_id in (*world.gateway.charges, *world.gateway.refunds):
        if _pends(world.gateway, its_id):
            world.gateway.decide(its_id)
    assert await payments.application.resumer.resume() == 0
    await payments.check_back()


RECOVERIES = [check_then_resume, resume_then_check, silence_then_check]
DECISIONS = [pytest.param(Step.SUCCEED, id="at once"), pytest.param(Step.PEND, id="by webhook")]
HISTORIES = [
    pytest.param(Step.SUCCEED, resume_then_check, id="at once"),
    pytest.param(Step.PEND, check_then_resume, id="by webhook"),
    pytest.param(Step.PEND, silence_then_check, id="by webhook that gets lost"),
]


async def check_the_books(payments: RunningPayments, refunded_minor: int) -> None:
    book = await payments.gateway.book()
    assert book == GatewayBook(TOTAL_MINOR, refunded_minor, 1, int(refunded_minor > 0))
    statistics = await payments.application.use_cases.queries.statistics()
    assert (statistics.captured_minor, statistics.refunded_minor) == (book.captured_minor, book.refunded_minor)
    assert sum(statistics.ledger.values()) == 0
    assert statistics.outbox_messages == 0
    assert statistics.refused_events == []
    assert payments.queue.halves == {}


async def check_it_was_paid_once(world: World) -> None:
    async with world.process() as (payments, _):
        payment = await pay(world, payments)  # the client, which never got its answer, repeats its request
        assert payment.status is PaymentStatus.CAPTURED
        assert await payments.payments() == [payment]
        assert len(payments.told(events.SUCCEEDED_TAG)) == 1
        await check_the_books(payments, 0)
        async with payments.application.units.snapshot() as unit:
            history = await unit.payments.history(payment.payment_id)
        assert [change.new_status for change in history] == [PaymentStatus.CREATED, PaymentStatus.CAPTURED]


@pytest.mark.mechanism("I2")
@pytest.mark.parametrize(("decision", "recover"), HISTORIES)
@pytest.mark.parametrize("dies_at", DEATHS)
async def test_a_payment_that_died_at_any_step_is_captured_once_and_told_once(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch, dies_at: int, recover: Act, decision: Step
) -> None:
    world = World(new_database_url("payments"), monkeypatch, decision)
    await world.live(open_order)
    assert await world.live(pay, dies_at) == dies_at
    await world.live(recover)
    await check_it_was_paid_once(world)


@pytest.mark.parametrize("decision", DECISIONS)
async def test_the_steps_are_all_there_are(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch, decision: Step
) -> None:
    world = World(new_database_url("payments"), monkeypatch, decision)
    await world.live(open_order)
    assert await world.live(pay) == len(STEPS)
    assert await world.live(refund) == len(STEPS)
    await check_it_was_refunded_once(world)


@pytest.mark.parametrize("recover", RECOVERIES)
@pytest.mark.parametrize("dies_at", [MONEY_MOVED, WRITTEN_DOWN])
async def test_a_payment_whose_recovery_dies_at_any_step_too_is_captured_once_and_told_once(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch, dies_at: int, recover: Act
) -> None:
    for dies_again_at in range(1, len(STEPS) + 1):
        world = World(new_database_url(f"payments-{dies_again_at}"), monkeypatch, Step.PEND)
        await world.live(open_order)
        await world.live(pay, dies_at)
        await world.live(recover, dies_again_at)
        await world.live(recover)
        await check_it_was_paid_once(world)


async def request_refund(_world: World, payments: RunningPayments) -> None:
    (payment,) = await payments.payments("order-1")
    await payments.request_refund(payment)


async def refund(world: World, payments: RunningPayments) -> None:
    await request_refund(world, payments)
    (payment,) = await payments.payments("order-1")
    if payment.status is not PaymentStatus.REFUNDED:
        (its_id,) = world.gateway.refunds
        assert (await payments.webhook(world.gateway.decide(its_id))).status_code == 200


async def check_it_was_refunded_once(world: World) -> None:
    async with world.process() as (payments, _):
        await request_refund(world, payments)  # the queue, which never got its answer, delivers the request again
        (payment,) = await payments.payments()
        assert payment.status is PaymentStatus.REFUNDED
        assert len(payments.told(events.SUCCEEDED_TAG)) == 1
        assert len(payments.told(events.REFUNDED_TAG)) == 1
        await check_the_books(payments, TOTAL_MINOR)


@pytest.mark.parametrize(("decision", "recover"), HISTORIES)
@pytest.mark.parametrize("dies_at", DEATHS)
async def test_a_refund_that_died_at_any_step_happens_once_and_is_told_once(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch, dies_at: int, recover: Act, decision: Step
) -> None:
    world = World(new_database_url("payments"), monkeypatch, decision)
    await world.live(open_order)
    await world.live(pay)
    assert await world.live(refund, dies_at) == dies_at
    await world.live(recover)
    await world.live(request_refund)
    await world.live(recover)
    await check_it_was_refunded_once(world)


async def relay(_world: World, payments: RunningPayments) -> None:
    await payments.application.relay.relay()


@pytest.mark.parametrize("dies_again_at", range(1, 7))
@pytest.mark.parametrize("dies_at", [1, 2])
async def test_money_that_moved_without_the_queue_is_told_once_whichever_process_dies(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch, dies_at: int, dies_again_at: int
) -> None:
    world = World(new_database_url("payments"), monkeypatch, Step.PEND)
    await world.live(open_order)
    async with world.process() as (payments, _):
        await payments.pay("k")
    world.queue.is_down = True
    await world.live(deliver_webhooks, dies_at)  # before and after the commit
    await world.live(deliver_webhooks)
    assert world.queue.messages == []
    world.queue.is_down = False
    await world.live(relay, dies_again_at)
    async with world.process() as (payments, _):
        await payments.check_back()
        await payments.application.relay.relay()
    await check_it_was_paid_once(world)
