"""Refunds of parts and of the whole, by operators and by orders, one after the other and at the same moment."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from payments.domain.errors import RefundTooLargeError
from payments.domain.payment import Payment, PaymentStatus
from payments.domain.refund import RefundStatus, whole_refund_id
from payments.service import events
from payments.service.gateway import GatewayBook
from payments.service.refund_payment import PartRefunded
from payments.testing import OPERATOR, TOTAL_MINOR, RunningPayments, Step, running_payments
from servicekit.errors import TryAgainError
from servicekit.message import MessageBody
from servicekit.testing.databases import NewDatabaseUrl

REFUNDED = events.REFUNDED_TAG


async def captured(payments: RunningPayments) -> Payment:
    await payments.open_order()
    return (await payments.pay("k")).payment


async def check_sums(payments: RunningPayments, payment_id: str, refunded_minor: int) -> None:
    """Database, ledger, gateway and messages agree about what went back."""
    payment = await payments.payment(payment_id)
    assert payment.refunded_minor == payment.refund_requested_minor == refunded_minor
    refunds = await payments.refunds_of(payment_id)
    assert sum(refund.amount_minor for refund in refunds) == refunded_minor
    assert {refund.status for refund in refunds} <= {RefundStatus.REFUNDED}
    statistics = await payments.application.use_cases.queries.statistics()
    assert statistics.ledger == {
        "gateway": TOTAL_MINOR - refunded_minor,
        "buyer-funds": refunded_minor - TOTAL_MINOR,
    }
    assert statistics.gateway == GatewayBook(TOTAL_MINOR, refunded_minor, 1, len(refunds))
    told = [MessageBody(message.body) for message in payments.told(REFUNDED)]
    assert sorted(body.text("refund_id") for body in told) == sorted(refund.refund_id for refund in refunds)
    assert sum(body.number("amount_minor") for body in told) == refunded_minor


async def test_parts_go_back_until_nothing_is_left(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await captured(payments)
        path = f"/payments/{payment.payment_id}"
        answer = await payments.post_refund(payment.payment_id, "r1", 800)
        refund = answer.json()
        now_ms = payments.clock.wall_ms()
        assert (answer.status_code, answer.headers["Location"]) == (201, f"{path}/refunds")
        assert refund == {
            "refund_id": refund["refund_id"],
            "payment_id": payment.payment_id,
            "amount_minor": 800,
            "currency": "CNY",
            "reason": "the seat did not recline",
            "requested_by": OPERATOR.subject,
            "requested_at_ms": now_ms,
            "status": "REFUNDED",
            "refunded_at_ms": now_ms,
            "failure": None,
        }
        read = (await payments.get(path)).json()
        assert (read["status"], read["refunded_minor"], read["refunded_at_ms"]) == ("PARTIALLY_REFUNDED", 800, None)
        await payments.clock.advance(1)
        too_much = await payments.post_refund(payment.payment_id, "r2", TOTAL_MINOR - 799)
        assert (too_much.status_code, too_much.json()["refundable_minor"]) == (422, TOTAL_MINOR - 800)
        assert (await payments.post_refund(payment.payment_id, "r2", TOTAL_MINOR - 800)).status_code == 201
        read = (await payments.get(path)).json()
        assert (read["status"], read["refunded_at_ms"]) == ("REFUNDED", now_ms + 1000)
        assert (await payments.post_refund(payment.payment_id, "r3", 1)).status_code == 422
        history = (await payments.get(f"{path}/history")).json()["changes"]
        assert [change["reason"] for change in history] == ["requested", "captured", "partially refunded", "refunded"]
        await check_sums(payments, payment.payment_id, TOTAL_MINOR)


async def test_a_repeated_key_answers_with_the_first_refund_and_another_payload_is_rejected(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await captured(payments)
        await payments.open_order("order-2")
        other = (await payments.pay("k2", "order-2")).payment
        first = await payments.post_refund(payment.payment_id, "r", 800)
        again = await payments.post_refund(payment.payment_id, "r", 800)
        assert (again.status_code, again.json()) == (201, first.json())
        assert again.headers["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in first.headers
        for rejected in (
            await payments.post_refund(payment.payment_id, "r", 801),
            await payments.post_refund(payment.payment_id, "r", 800, reason="another"),
            await payments.post_refund(other.payment_id, "r", 800),
        ):
            assert (rejected.status_code, rejected.json()["type"]) == (
                422,
                "urn:hourglass:problem:idempotency-key-reused",
            )
        assert (await payments.payment(payment.payment_id)).refunded_minor == 800
        assert (await payments.payment(other.payment_id)).refunded_minor == 0


async def test_a_refund_that_the_gateway_makes_later_is_in_progress_until_its_webhook(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await captured(payments)
        payments.scripted.script = [Step.PEND]
        answer = await payments.post_refund(payment.payment_id, "r", 800)
        refund_id = answer.json()["refund_id"]
        assert (answer.status_code, answer.json()["status"], answer.headers["Retry-After"]) == (202, "REQUESTED", "1")
        assert (await payments.payment(payment.payment_id)).status is PaymentStatus.CAPTURED
        await payments.webhook(payments.scripted.decide(refund_id))
        answer = await payments.post_refund(payment.payment_id, "r", 800)
        assert (answer.status_code, answer.json()["status"]) == (201, "REFUNDED")
        await check_sums(payments, payment.payment_id, 800)


async def test_orders_gets_the_rest_back_once_when_operators_have_given_back_a_part(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await captured(payments)
        payments.scripted.script = [Step.PEND]
        part = (await payments.refund_part(payment.payment_id, "r", 800)).refund
        for _ in range(3):
            await payments.request_refund(payment)
        await payments.webhook(payments.scripted.decide(part.refund_id))
        refunds = {refund.refund_id: refund.amount_minor for refund in await payments.refunds_of(payment.payment_id)}
        assert refunds == {part.refund_id: 800, whole_refund_id(payment.payment_id): TOTAL_MINOR - 800}
        assert (await payments.payment(payment.payment_id)).status is PaymentStatus.REFUNDED
        await check_sums(payments, payment.payment_id, TOTAL_MINOR)


async def test_orders_is_content_when_operators_have_given_everything_back(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await captured(payments)
        await payments.refund_part(payment.payment_id, "r", TOTAL_MINOR)
        await payments.request_refund(payment)
        assert len(await payments.refunds_of(payment.payment_id)) == 1
        await check_sums(payments, payment.payment_id, TOTAL_MINOR)


async def test_parts_and_the_whole_at_the_same_moment_are_together_never_more_than_was_captured(
    new_database_url: NewDatabaseUrl,
) -> None:
    """Two processes, six operators and orders ask at once; the database counts."""
    url = new_database_url("payments")
    async with running_payments(url) as one:
        payment = await captured(one)

        async def part(payments: RunningPayments, number: int) -> PartRefunded | None:
            try:
                return await payments.refund_part(payment.payment_id, f"r{number}", TOTAL_MINOR // 3)
            except RefundTooLargeError:
                return None

        async def whole(payments: RunningPayments) -> None:
            while True:
                try:
                    return await payments.request_refund(payment)
                except TryAgainError:
                    continue  # the queue delivers it again

        async with running_payments(url, gateway=one.gateway, queue=one.queue, clock=one.clock, seed=2) as other:
            results = await asyncio.gather(
                *(part(process, number) for number in range(6) for process in [(one, other)[number % 2]]),
                whole(one),
                whole(other),
            )
            for process in (one, other):
                assert await process.application.resumer.resume() == 0
        made = [result for result in results if result is not None]
        assert len(made) <= 3
        # Whichever came first, orders has had the rest: everything is back, and nothing twice.
        assert (await one.payment(payment.payment_id)).status is PaymentStatus.REFUNDED
        await check_sums(one, payment.payment_id, TOTAL_MINOR)


async def test_one_key_at_the_same_moment_in_two_processes_makes_one_refund(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("payments")
    async with running_payments(url) as one:
        payment = await captured(one)
        async with running_payments(url, gateway=one.gateway, queue=one.queue, clock=one.clock, seed=2) as other:
            answers = await asyncio.gather(
                *(process.post_refund(payment.payment_id, "r", 800) for process in (one, other, one, other))
            )
        assert {answer.status_code for answer in answers} <= {201, 202, 409}
        assert await one.application.resumer.resume() == 0
        await check_sums(one, payment.payment_id, 800)


@pytest.mark.parametrize(
    ("step", "status", "kind"), [(Step.PEND, 409, "not-captured-yet"), (Step.DECLINE, 409, "not-refundable")]
)
async def test_money_that_was_not_taken_cannot_go_back(
    new_database_url: NewDatabaseUrl, step: Step, status: int, kind: str
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payments.scripted.script = [step]
        payment = await captured(payments)
        answer = await payments.post_refund(payment.payment_id, "r", 1)
        assert (answer.status_code, answer.json()["type"]) == (status, f"urn:hourglass:problem:{kind}")
        assert await payments.refunds_of(payment.payment_id) == []


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"amount_minor": 0}, "body.amount_minor"),
        ({"amount_minor": "1"}, "body.amount_minor"),
        ({"amount_minor": 1.0}, "body.amount_minor"),
        ({"amount_minor": 2**63}, "body.amount_minor"),
        ({"reason": ""}, "body.reason"),
        ({"reason": "a\u0000b"}, "body.reason"),
        ({"reason": "r" * 201}, "body.reason"),
        ({"currency": "CNY"}, "body.currency"),
    ],
)
async def test_an_invalid_refund_is_rejected_by_its_field(
    new_database_url: NewDatabaseUrl, changes: dict[str, Any], field: str
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await captured(payments)
        answer = await payments.post_refund(payment.payment_id, "r", **changes)
        assert answer.status_code == 422
        assert [found["field"] for found in answer.json()["errors"]] == [field]


async def test_refunds_are_listed_newest_first_in_pages_of_one_payment_and_of_all(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment = await captured(payments)
        await payments.open_order("order-2")
        other = (await payments.pay("k2", "order-2")).payment
        for number in range(5):
            await payments.refund_part(payment.payment_id, f"r{number}", 10 + number)
            if number % 2:  # the others share a millisecond
                await payments.clock.advance(1)
        await payments.request_refund(other)

        async def everything(path: str) -> list[list[dict[str, Any]]]:
            pages, cursor = [], ""
            while True:
                answer = (await payments.get(f"{path}?limit=2{cursor}")).json()
                pages.append(answer["items"])
                if answer["next_cursor"] is None:
                    return pages
                cursor = f"&cursor={answer['next_cursor']}"

        of_one = await everything(f"/payments/{payment.payment_id}/refunds")
        assert [len(page) for page in of_one] == [2, 2, 1]
        of_all = [refund for page in await everything("/refunds") for refund in page]
        assert len({refund["refund_id"] for refund in of_all}) == 6
        requested = [refund["requested_at_ms"] for refund in of_all]
        assert requested == sorted(requested, reverse=True)
        assert {refund["requested_by"] for refund in of_all} == {OPERATOR.subject, events.REFUND_HANDLER_GROUP}
