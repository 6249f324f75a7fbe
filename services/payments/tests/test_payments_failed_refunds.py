"""A refund that the gateway rejects for good: it is kept and shown, takes nothing else down, and can be tried again."""

from __future__ import annotations

import asyncio

from payments.domain.payment import Payment, PaymentStatus
from payments.domain.refund import RefundStatus
from payments.service import events
from payments.service.gateway import GatewayBook, Refunded, RefundOrder
from payments.testing import OPERATOR, TOTAL_MINOR, RunningPayments, Step, running_payments
from servicekit.testing.databases import NewDatabaseUrl

REJECTION = "the account is closed"


async def captured(payments: RunningPayments) -> Payment:
    await payments.open_order()
    return (await payments.pay("k")).payment


async def failed(payments: RunningPayments) -> Payment:
    """A payment whose whole refund, which orders has asked for, was rejected."""
    payment = await captured(payments)
    payments.scripted.script = [Step.REJECT]
    await payments.request_refund(payment)
    return payment


async def retry(
    payments: RunningPayments, payment: Payment, refund_id: str | None = None
) -> tuple[int, dict[str, object]]:
    refund_id = refund_id or f"refund-{payment.payment_id}"
    path = f"/payments/{payment.payment_id}/refunds/{refund_id}/retry"
    answer = await payments.http.post(path, headers=payments.headers("operator", OPERATOR.subject))
    return answer.status_code, answer.json()


async def test_it_is_kept_and_shown_and_payments_stays_ready(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await failed(payments)
        (refund,) = await payments.refunds_of(payment.payment_id)
        assert (refund.status, refund.failure) == (RefundStatus.FAILED, REJECTION)
        calls = payments.scripted.calls
        assert await payments.application.resumer.resume() == 0
        await payments.request_refund(payment)
        assert payments.scripted.calls == calls  # the gateway is not asked again by itself
        assert (await payments.http.get("/health/ready")).status_code == 200
        assert (await payments.get("/statistics")).json()["refunds"] == {"REQUESTED": 0, "FAILED": 1, "REFUNDED": 0}
        (shown,) = (await payments.get("/refunds?status=FAILED")).json()["items"]
        assert (shown["refund_id"], shown["failure"]) == (refund.refund_id, REJECTION)
        assert (await payments.get("/refunds?status=REFUNDED")).json()["items"] == []
        async with payments.application.units.snapshot() as unit:
            assert await unit.refunds.count_failed() == 1
        # What was asked for stays asked for: the same money is not given back in another way.
        assert (await payments.payment(payment.payment_id)).refundable_minor == 0


async def test_an_operator_is_told_of_it_each_time(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await captured(payments)
        payments.scripted.script = [Step.REJECT]
        for replayed in (None, "true"):
            answer = await payments.post_refund(payment.payment_id, "r")
            assert answer.status_code == 409
            assert answer.headers.get("Idempotency-Replayed") == replayed
            body = answer.json()
            assert (body["type"], body["failure"]) == ("urn:hourglass:problem:refund-failed", REJECTION)
        payments.scripted.script = []
        assert await retry(payments, payment, body["refund_id"]) == (
            200,
            (await payments.get(f"/payments/{payment.payment_id}/refunds")).json()["items"][0],
        )
        assert (await payments.post_refund(payment.payment_id, "r")).status_code == 201


async def test_it_is_tried_again_under_its_id_and_moves_money_once(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await failed(payments)
        payments.scripted.script = [Step.REJECT]
        status, body = await retry(payments, payment)
        assert (status, body["failure"]) == (409, REJECTION)
        payments.scripted.script = [Step.PEND]
        assert (await retry(payments, payment))[0] == 202
        assert (await retry(payments, payment))[0] == 202
        payments.scripted.decide(f"refund-{payment.payment_id}")
        assert await payments.application.resumer.resume() == 0
        for _ in range(2):
            status, body = await retry(payments, payment)
            assert (status, body["status"], body["failure"]) == (200, "REFUNDED", None)
        assert (await payments.payment(payment.payment_id)).status is PaymentStatus.REFUNDED
        assert await payments.scripted.book() == GatewayBook(TOTAL_MINOR, TOTAL_MINOR, 1, 1)
        assert len(payments.told(events.REFUNDED_TAG)) == 1


async def test_of_several_that_try_again_at_once_one_does(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await failed(payments)
        answers = await asyncio.gather(*(retry(payments, payment) for _ in range(4)))
        assert {status for status, _ in answers} <= {200, 202}
        assert (await retry(payments, payment))[0] == 200
        assert await payments.scripted.book() == GatewayBook(TOTAL_MINOR, TOTAL_MINOR, 1, 1)


async def test_what_the_gateway_tells_after_all_counts(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await failed(payments)
        refund_id = f"refund-{payment.payment_id}"
        order = RefundOrder(refund_id, payment.payment_id, TOTAL_MINOR, payment.currency)
        payments.scripted.refunds[refund_id] = (order, Refunded(payments.clock.wall_ms()))
        assert (await payments.webhook(payments.scripted.event_of(refund_id))).status_code == 200
        (refund,) = await payments.refunds_of(payment.payment_id)
        assert (refund.status, refund.failure) == (RefundStatus.REFUNDED, None)


async def test_what_is_not_there_cannot_be_tried_again(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await failed(payments)
        status, body = await retry(payments, payment, "refund-unknown")
        assert (status, body["type"]) == (404, "urn:hourglass:problem:unknown-refund")
        await payments.open_order("order-2")
        other = (await payments.pay("k2", "order-2")).payment
        assert (await retry(payments, other, f"refund-{payment.payment_id}"))[0] == 404
