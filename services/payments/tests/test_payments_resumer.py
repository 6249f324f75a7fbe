"""The resumer as it runs: when it starts, what wakes it, how it backs off, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from osenv import SimClock
from payments.domain.payment_status import PaymentStatus
from payments.service import events, resumer
from payments.service.gateway import Captured, GatewayBook
from payments.service.resumer import BACKOFF_MAX_S
from payments.testing import TOTAL_MINOR, RunningPayments, ScriptedGateway, Step, running_payments
from servicekit.testing import until

SUCCEEDED = events.SUCCEEDED_TAG


@asynccontextmanager
async def resuming(payments: RunningPayments) -> AsyncIterator[None]:
    """The resumer runs; it must stop when it is told to."""
    running = asyncio.create_task(payments.application.resumer.run())
    try:
        yield
        payments.application.resumer.stop()
        await running
    finally:
        running.cancel()


def scripted(payments: RunningPayments) -> ScriptedGateway:
    assert isinstance(payments.gateway, ScriptedGateway)
    return payments.gateway


async def test_what_an_earlier_process_left_is_finished_at_the_start(tmp_path: Path) -> None:
    gateway = ScriptedGateway(SimClock(), *[Step.FAIL_AFTER] * 3)
    async with running_payments(tmp_path, gateway=gateway) as payments:
        for n in range(3):
            await payments.open_order(f"order-{n}")
            await payments.pay(f"k{n}", f"order-{n}")
    async with running_payments(tmp_path, gateway=gateway, seed=2) as payments, resuming(payments):
        await until(lambda: len(payments.told(SUCCEEDED)) == 3)
        assert await gateway.book() == GatewayBook(3 * TOTAL_MINOR, 0, 3, 0)


async def test_a_payment_that_breaks_off_wakes_it(tmp_path: Path) -> None:
    async with running_payments(tmp_path) as payments, resuming(payments):
        await payments.clock.advance(1)
        await payments.open_order()
        scripted(payments).script = [Step.FAIL_AFTER]
        await payments.pay("k")
        await until(lambda: len(payments.told(SUCCEEDED)) == 1)
        assert payments.application.resumer.left == 0


async def test_a_refund_that_breaks_off_wakes_it(tmp_path: Path) -> None:
    async with running_payments(tmp_path) as payments, resuming(payments):
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        scripted(payments).script = [Step.FAIL_AFTER]
        await payments.request_refund(payment)
        await until(lambda: len(payments.told(events.REFUNDED_TAG)) == 1)


async def test_a_request_that_is_cancelled_wakes_it(tmp_path: Path) -> None:
    async with running_payments(tmp_path) as payments, resuming(payments):
        await payments.open_order()
        gateway = scripted(payments)
        gateway.script = [Step.HOLD]
        paying = asyncio.create_task(payments.pay("k"))
        await until(lambda: gateway.calls == 1)
        paying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await paying
        await until(lambda: len(payments.told(SUCCEEDED)) == 1)


async def test_it_backs_off_while_the_queue_is_away_and_says_so_in_the_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_payments(tmp_path) as payments:
        naps: list[float] = []

        async def sleep(seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 8:
                payments.application.resumer.stop()

        await payments.open_order()
        gateway = scripted(payments)
        gateway.script = [Step.HOLD]
        paying = asyncio.create_task(payments.pay("k"))
        await until(lambda: gateway.calls == 1)
        payments.queue.is_down = True
        gateway.release.set()
        assert (await paying).payment.status is PaymentStatus.CREATED
        monkeypatch.setattr(payments.clock, "sleep", sleep)
        await payments.application.resumer.run()
        assert naps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, BACKOFF_MAX_S, BACKOFF_MAX_S, BACKOFF_MAX_S])
        ready = await payments.http.get("/health/ready")
        assert ready.status_code == 503
        assert "1 payments or refunds" in ready.json()["checks"]["unfinished"]
        assert payments.told(SUCCEEDED) == []
        assert await gateway.book() == GatewayBook(TOTAL_MINOR, 0, 1, 0)


async def test_it_leaves_alone_what_a_request_has_in_hand(tmp_path: Path) -> None:
    async with running_payments(tmp_path) as payments:
        await payments.open_order()
        gateway = scripted(payments)
        gateway.script = [Step.HOLD]
        paying = asyncio.create_task(payments.pay("k"))
        await until(lambda: gateway.calls == 1)
        assert await payments.application.resumer.resume() == 0
        assert gateway.calls == 1
        gateway.release.set()
        assert (await paying).payment.status is PaymentStatus.CAPTURED


async def test_one_payment_that_the_gateway_refuses_for_good_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumer, "BATCH_PAYMENTS", 2)
    async with running_payments(tmp_path) as payments:
        gateway = scripted(payments)
        gateway.script = [Step.FAIL_BEFORE] * 7
        for n in range(7):
            await payments.open_order(f"order-{n}")
            payment_id = (await payments.pay(f"k{n}", f"order-{n}")).payment.payment_id
            if n == 0:
                gateway.captures[payment_id] = (1, "EUR", Captured(0))
        assert await payments.application.resumer.resume() == 1
        assert len(payments.told(SUCCEEDED)) == 6
        assert payments.application.resumer.left == 1


async def test_a_mistake_of_the_code_is_not_taken_for_a_failure_of_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_payments(tmp_path) as payments:
        await payments.open_order()
        scripted(payments).script = [Step.FAIL_BEFORE]
        await payments.pay("k")
        monkeypatch.delattr(ScriptedGateway, "capture")
        with pytest.raises(AttributeError):
            await payments.application.resumer.run()


async def test_it_waits_for_a_database_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with running_payments(folder) as payments:
        await payments.open_order()
        scripted(payments).script = [Step.FAIL_AFTER]
        await payments.pay("k")
        await payments.database.dispose()
        with monkeypatch.context() as patched:
            patched.setattr(payments.database, "_path", str(tmp_path / "missing" / "payments.db"))
            running = asyncio.create_task(payments.application.resumer.run())
            await until(lambda: payments.application.resumer.left == 1)
            await payments.database.dispose()
        while payments.told(SUCCEEDED) == []:
            await payments.clock.advance(BACKOFF_MAX_S)
        running.cancel()
