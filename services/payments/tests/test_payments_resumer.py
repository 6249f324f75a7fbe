"""The resumer as it runs: when it starts, what wakes it, when it asks, how it backs off, and how it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from osenv import SimClock
from payments.domain.payment import PaymentStatus
from payments.service import events, resumer
from payments.service.gateway import GatewayBook
from payments.service.resumer import BACKOFF_MAX_S
from payments.testing import TOTAL_MINOR, RunningPayments, ScriptedGateway, Step, running_payments
from servicekit.config import SQLITE_PREFIX
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl

SUCCEEDED, REFUNDED = events.SUCCEEDED_TAG, events.REFUNDED_TAG
SILENCE_S = 5.0


@asynccontextmanager
async def resuming(payments: RunningPayments) -> AsyncIterator[None]:
    """The resumer runs, and has made its first pass; it must stop when it is told to, whatever it waits for."""
    resumer_ = payments.application.resumer
    look, looks = resumer_._look, 0

    async def count_looks(silence_s: float) -> resumer._Pass:
        nonlocal looks
        try:
            return await look(silence_s)
        finally:
            looks += 1

    resumer_._look = count_looks  # type: ignore[method-assign]
    running = asyncio.create_task(resumer_.run())
    try:
        await until(lambda: looks > 0)
        yield
        payments.application.resumer.stop()
        await running
    finally:
        running.cancel()


async def advance_until_told(payments: RunningPayments, tag: str, count: int = 1) -> float:
    """Move the clock in small steps until it is told; returns how many seconds that took at least."""
    moved_s = 0.0
    while len(payments.told(tag)) < count:
        await payments.clock.advance(0.5)
        moved_s += 0.5
        for _ in range(20):
            await asyncio.sleep(0)
    return moved_s


async def test_what_an_earlier_process_left_is_asked_about_at_the_start(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("payments")
    gateway = ScriptedGateway(SimClock(), *[Step.FAIL_AFTER] * 3)
    async with running_payments(url, gateway=gateway) as payments:
        for n in range(3):
            await payments.open_order(f"order-{n}")
            await payments.pay(f"k{n}", f"order-{n}")
    async with running_payments(url, gateway=gateway, seed=2) as payments, resuming(payments):
        await until(lambda: len(payments.told(SUCCEEDED)) == 3)
        assert await gateway.book() == GatewayBook(3 * TOTAL_MINOR, 0, 3, 0)


async def test_a_gateway_that_has_never_heard_of_a_charge_is_asked_to_make_it(new_database_url: NewDatabaseUrl) -> None:
    gateway = ScriptedGateway(SimClock(), Step.FAIL_BEFORE, Step.PEND)
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        await payments.open_order()
        payment_id = (await payments.pay("k")).payment.payment_id
        assert gateway.charges == {}
        assert await payments.application.resumer.resume() == 0
        assert list(gateway.charges) == [payment_id]
        gateway.decide(payment_id)
        assert await payments.application.resumer.resume() == 0
        assert (await payments.payment(payment_id)).status is PaymentStatus.CAPTURED


async def test_a_webhook_that_never_comes_is_asked_for_when_the_gateway_has_been_silent_long_enough(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments, resuming(payments):
        payments.scripted.script = [Step.PEND]
        await payments.clock.advance(1)
        await payments.open_order()
        payment_id = (await payments.pay("k")).payment.payment_id
        payments.scripted.decide(payment_id)
        assert await advance_until_told(payments, SUCCEEDED) >= SILENCE_S
        assert payments.scripted.calls == 2
        assert (await payments.payment(payment_id)).status is PaymentStatus.CAPTURED
        payments.scripted.script = [Step.PEND]
        await payments.request_refund(await payments.payment(payment_id))
        payments.scripted.decide(f"refund-{payment_id}")
        assert await advance_until_told(payments, REFUNDED) >= SILENCE_S
        assert payments.scripted.calls == 4
        assert payments.application.resumer.left == 0


async def test_a_gateway_that_takes_its_time_is_asked_again_and_again_and_not_all_the_time(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments, resuming(payments):
        payments.scripted.script = [Step.PEND]
        await payments.open_order()
        payment_id = (await payments.pay("k")).payment.payment_id
        moved_s = 0.0
        while payments.scripted.calls < 4:  # a charge and three questions
            await payments.clock.advance(0.5)
            moved_s += 0.5
            for _ in range(20):
                await asyncio.sleep(0)
        assert moved_s >= 3 * SILENCE_S
        assert payments.application.resumer.left == 0  # to wait is no failure
        payments.scripted.decide(payment_id)
        await advance_until_told(payments, SUCCEEDED)


async def test_a_webhook_that_comes_in_time_makes_the_question_needless(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments, resuming(payments):
        payments.scripted.otherwise = Step.PEND
        await payments.open_order()
        first = (await payments.pay("k")).payment.payment_id
        await payments.clock.advance(SILENCE_S / 2)
        await payments.webhook(payments.scripted.decide(first))
        await payments.open_order("order-2")
        second = (await payments.pay("k2", "order-2")).payment.payment_id
        payments.scripted.decide(second)
        await advance_until_told(payments, SUCCEEDED, 2)
        assert payments.scripted.calls == 3  # two charges, and one question about the second


async def test_a_payment_that_another_process_left_is_found_without_a_restart(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("payments")
    async with running_payments(url) as payments, resuming(payments):
        await payments.open_order()
        payments.scripted.script = [Step.FAIL_AFTER]
        async with running_payments(url, gateway=payments.gateway, queue=payments.queue, seed=2) as dying:
            await dying.pay("k")  # no wake-up in the first process
        assert await advance_until_told(payments, SUCCEEDED) >= SILENCE_S


async def test_a_request_that_is_cancelled_wakes_it(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments, resuming(payments):
        await payments.open_order()
        gateway = payments.scripted
        gateway.script = [Step.HOLD]
        paying = asyncio.create_task(payments.pay("k"))
        await until(lambda: gateway.calls == 1)
        paying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await paying
        await advance_until_told(payments, SUCCEEDED)


async def test_it_backs_off_while_the_gateway_is_away_and_payments_stays_ready(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        naps: list[float] = []

        async def wait(_clock: SimClock, seconds: float) -> None:
            naps.append(seconds)
            if len(naps) == 8:
                payments.application.resumer.stop()

        await payments.open_order()
        payments.scripted.script = [Step.FAIL_AFTER]
        assert (await payments.pay("k")).payment.status is PaymentStatus.CREATED
        payments.scripted.is_away = True
        monkeypatch.setattr(payments.application.resumer._end, "wait", wait)
        await payments.clock.advance(SILENCE_S)
        await payments.application.resumer.run()
        assert naps == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, BACKOFF_MAX_S, BACKOFF_MAX_S, BACKOFF_MAX_S])
        assert payments.application.resumer.left == 1
        assert (await payments.http.get("/health/ready")).json()["checks"] == {"database": "ok"}
        payments.scripted.is_away = False
        assert await payments.application.resumer.resume() == 0
        assert len(payments.told(SUCCEEDED)) == 1
        assert payments.application.resumer.left == 0


async def test_it_leaves_alone_what_a_request_has_in_hand(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        gateway = payments.scripted
        gateway.script = [Step.HOLD]
        paying = asyncio.create_task(payments.pay("k"))
        await until(lambda: gateway.calls == 1)
        assert await payments.application.resumer.resume() == 0
        assert gateway.calls == 1
        gateway.release.set()
        assert (await paying).payment.status is PaymentStatus.CAPTURED


async def test_one_payment_that_the_gateway_rejects_for_good_holds_up_no_other(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resumer, "BATCH_PAYMENTS", 2)
    async with running_payments(new_database_url("payments")) as payments:
        gateway = payments.scripted
        gateway.script = [Step.FAIL_BEFORE] * 7
        for n in range(7):
            await payments.open_order(f"order-{n}")
            await payments.pay(f"k{n}", f"order-{n}")
        assert await payments.application.resumer.resume() == 0
        await payments.open_order("order-7")
        gateway.script = [Step.FAIL_AFTER]
        stuck_id = (await payments.pay("k7", "order-7")).payment.payment_id
        gateway.change_charge(stuck_id, amount_minor=1)
        await payments.open_order("order-8")
        gateway.script = [Step.FAIL_BEFORE]
        await payments.pay("k8", "order-8")
        assert await payments.application.resumer.resume() == 1
        assert len(payments.told(SUCCEEDED)) == 8
        assert payments.application.resumer.left == 1


async def test_a_mistake_of_the_code_is_not_taken_for_a_failure_of_the_gateway(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payments.scripted.script = [Step.FAIL_BEFORE]
        await payments.pay("k")
        monkeypatch.delattr(ScriptedGateway, "find_charge")
        with pytest.raises(AttributeError):
            await payments.application.resumer.run()


async def test_it_waits_for_a_database_that_does_not_answer(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with running_payments(f"{SQLITE_PREFIX}{folder / 'payments.db'}") as payments:
        await payments.open_order()
        payments.scripted.script = [Step.FAIL_AFTER]
        await payments.pay("k")
        await payments.database.dispose()
        folder.rename(tmp_path / "away")
        async with resuming(payments):
            await until(lambda: payments.application.resumer.left == 1)
            await payments.database.dispose()
            (tmp_path / "away").rename(folder)
            await advance_until_told(payments, SUCCEEDED)


async def test_a_wall_clock_that_is_set_back_puts_nothing_off(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("payments")
    tomorrow = SimClock()
    await tomorrow.advance(86_400)
    gateway = ScriptedGateway(SimClock(), Step.PEND)
    async with running_payments(url, gateway=gateway, clock=tomorrow) as payments:
        await payments.open_order()
        gateway.decide((await payments.pay("k")).payment.payment_id)
    async with running_payments(url, gateway=gateway, seed=2) as payments:
        looked = await payments.application.resumer._look(SILENCE_S)
        assert (looked.errors, len(payments.told(SUCCEEDED))) == ([], 1)
