"""What the gateway tells, in every way in which it can go wrong (docs/reference/faults.md#application). One ledger
credit per payment, whatever comes, how often and in which order.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select

from payments.adapters.sql_unit_of_work import SqlUnitOfWork
from payments.adapters.tables import gateway_events, ledger_entries
from payments.domain.payment import PaymentStatus
from payments.service import events
from payments.service.receive_event import WINDOW_S
from payments.testing import NO_MONEY, TOTAL_MINOR, RunningPayments, Step, running_payments
from servicekit.errors import PublishError, StorageUnavailableError
from servicekit.http.limits import RateLimit
from servicekit.testing.databases import NewDatabaseUrl

SUCCEEDED, REFUNDED = events.SUCCEEDED_TAG, events.REFUNDED_TAG
HANDLED, REPEATED, REFUSED = "HANDLED", "REPEATED", "REFUSED"


async def pending(payments: RunningPayments, order_id: str = "order-1") -> str:
    """The id of a payment that the gateway has not decided."""
    payments.scripted.otherwise = Step.PEND
    await payments.open_order(order_id)
    payment = (await payments.pay(f"key-{order_id}", order_id)).payment
    assert payment.status is PaymentStatus.CREATED
    return payment.payment_id


async def captured(payments: RunningPayments) -> tuple[str, dict[str, Any]]:
    """A payment that a webhook has captured, and the webhook."""
    payment_id = await pending(payments)
    event = payments.scripted.decide(payment_id)
    assert status_of(await payments.webhook(event)) == HANDLED
    return payment_id, event


def status_of(answer: httpx.Response) -> str:
    assert answer.status_code == 200, answer.text
    return str(answer.json()["status"])


async def credits_of(payments: RunningPayments, payment_id: str) -> int:
    """How often the payment's money is in the ledger."""
    wanted = select(func.count()).where(
        ledger_entries.c.payment_id == payment_id,
        ledger_entries.c.account == "buyer-funds",
        ledger_entries.c.amount_minor < 0,
    )
    async with payments.database.snapshot() as connection:
        return int((await connection.execute(wanted)).scalar_one())


async def kept(payments: RunningPayments) -> list[tuple[str, str | None]]:
    async with payments.database.snapshot() as connection:
        rows = await connection.execute(select(gateway_events).order_by(gateway_events.c.received_at_ms))
        return [(row.status, row.reason) for row in rows]


async def check_one_credit(payments: RunningPayments, payment_id: str) -> None:
    assert await credits_of(payments, payment_id) == 1
    assert len(payments.told(SUCCEEDED)) == 1
    assert payments.queue.halves == {}
    statistics = await payments.application.use_cases.queries.statistics()
    assert sum(statistics.ledger.values()) == 0
    assert statistics.captured_minor == TOTAL_MINOR


async def test_a_webhook_captures_the_payment_books_it_and_tells_it(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        assert await credits_of(payments, payment_id) == 0
        await payments.clock.advance(60)
        event = payments.scripted.decide(payment_id)
        await payments.clock.advance(1)
        answer = await payments.webhook(event)
        assert answer.json() == {"event_id": event["event_id"], "status": HANDLED}
        payment = await payments.payment(payment_id)
        assert (payment.status, payment.captured_at_ms) == (PaymentStatus.CAPTURED, event["occurred_at_ms"])
        await check_one_credit(payments, payment_id)
        assert (await payments.pay("key-order-1")).payment == payment
        assert payments.scripted.calls == 1


async def test_a_webhook_declines_the_payment_and_the_order_can_be_paid_again(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id, declines=True)
        assert status_of(await payments.webhook(event)) == HANDLED
        payment = await payments.payment(payment_id)
        assert (payment.status, payment.decline_reason) == (PaymentStatus.DECLINED, NO_MONEY)
        assert status_of(await payments.webhook(event)) == HANDLED
        assert (await payments.pay("another")).payment.status is PaymentStatus.CREATED
        assert await credits_of(payments, payment_id) == 0


async def test_a_decline_without_a_reason_is_taken(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id, declines=True)
        assert status_of(await payments.webhook(event, decline_reason=None)) == HANDLED
        assert (await payments.payment(payment_id)).decline_reason == "the gateway gave no reason"


async def test_a_webhook_that_comes_again_and_again_changes_nothing(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id, event = await captured(payments)
        for _ in range(3):
            assert status_of(await payments.webhook(event)) == HANDLED
        assert status_of(await payments.webhook(event | {"event_id": "the-same-told-anew"})) == REPEATED
        await check_one_credit(payments, payment_id)
        assert await kept(payments) == [(HANDLED, None), (REPEATED, None)]


async def test_of_webhooks_that_come_at_the_same_moment_one_is_carried_out(new_database_url: NewDatabaseUrl) -> None:
    url = new_database_url("payments")
    async with running_payments(url) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id)
        others = [event | {"event_id": f"event-{number}"} for number in range(4)]
        async with running_payments(url, gateway=payments.gateway, queue=payments.queue, seed=2) as other:
            answers = await asyncio.gather(
                *(process.webhook(event) for process in (payments, other) for _ in range(4)),
                *(process.webhook(one) for process, one in zip((payments, other) * 2, others, strict=True)),
                payments.application.resumer.resume(),
                other.application.resumer.resume(),
            )
        statuses = [status_of(answer) for answer in answers if isinstance(answer, httpx.Response)]
        assert set(statuses) <= {HANDLED, REPEATED}
        await check_one_credit(payments, payment_id)
        found = await kept(payments)
        assert len(found) == 5  # one row of each event
        assert sum(status == HANDLED for status, _ in found) <= 1


@pytest.mark.parametrize("changes", [{"amount_minor": 1}, {"amount_minor": TOTAL_MINOR - 1}, {"currency": "EUR"}])
@pytest.mark.parametrize("declines", [False, True])
async def test_a_webhook_with_another_amount_or_currency_moves_nothing(
    new_database_url: NewDatabaseUrl, changes: dict[str, Any], declines: bool
) -> None:
    """Bug zoo 32: a callback without a check of its amount."""
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id, declines=declines)
        for _ in range(2):
            assert status_of(await payments.webhook(event, **changes)) == REFUSED
        assert (await payments.payment(payment_id)).status is PaymentStatus.CREATED
        assert (await credits_of(payments, payment_id), payments.told(SUCCEEDED)) == (0, [])
        ((status, reason),) = await kept(payments)
        assert status == REFUSED
        assert reason is not None
        assert str(next(iter(changes.values()))) in reason
        # The event's id is used up; the truth comes under another, or is asked for.
        assert status_of(await payments.webhook(event | {"event_id": "the-truth"})) == HANDLED


async def test_an_amount_that_was_rejected_as_a_webhook_is_not_booked_because_it_is_asked_for(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        payments.scripted.change_charge(payment_id, amount_minor=1)
        assert status_of(await payments.webhook(payments.scripted.decide(payment_id))) == REFUSED
        assert await payments.application.resumer.resume() == 1  # PaymentsUnfinished tells a person
        assert (await payments.payment(payment_id)).status is PaymentStatus.CREATED
        assert (await credits_of(payments, payment_id), payments.told(SUCCEEDED)) == (0, [])


async def test_a_webhook_of_another_order_moves_nothing(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        first, second = await pending(payments, "order-1"), await pending(payments, "order-2")
        event = payments.scripted.decide(first)
        assert status_of(await payments.webhook(event, order_id="order-2")) == REFUSED
        assert status_of(await payments.webhook(event | {"event_id": "swapped"}, charge_id=second)) == REFUSED
        for payment_id in (first, second):
            assert (await payments.payment(payment_id)).status is PaymentStatus.CREATED
            assert await credits_of(payments, payment_id) == 0


async def test_a_webhook_of_an_unknown_payment_is_kept_for_a_person(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id)
        assert status_of(await payments.webhook(event, charge_id="unknown's")) == REFUSED
        statistics = (await payments.get("/statistics")).json()
        assert statistics["gateway_events"] == {HANDLED: 0, REPEATED: 0, REFUSED: 1}
        assert statistics["refused_events"] == [
            {
                "event_id": event["event_id"],
                "kind": "charge.captured",
                "payment_id": "unknown's",
                "reason": '''there is no payment "unknown's"''',
                "received_at_ms": payments.clock.wall_ms(),
            }
        ]


async def test_a_webhook_that_comes_days_late_is_taken_if_it_is_signed_now(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id)
        signed_then = await payments.signed(json.dumps(event).encode(), late_s=WINDOW_S + 1)
        assert signed_then.status_code == 401
        await payments.clock.advance(3 * 86_400)
        assert status_of(await payments.webhook(event)) == HANDLED
        assert (await payments.payment(payment_id)).captured_at_ms == event["occurred_at_ms"]
        await check_one_credit(payments, payment_id)


@pytest.mark.mechanism("U3")
async def test_a_forged_webhook_moves_nothing(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        body = json.dumps(payments.scripted.decide(payment_id)).encode()
        forged = await payments.signed(body, secret="a secret that was guessed")
        assert forged.status_code == 401
        assert (await payments.payment(payment_id)).status is PaymentStatus.CREATED
        assert (await credits_of(payments, payment_id), await kept(payments)) == (0, [])


async def test_a_capture_that_is_told_after_its_refund_changes_nothing(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        told_late = payments.scripted.decide(payment_id)
        assert await payments.application.resumer.resume() == 0  # asked, because no webhook came
        payment = await payments.payment(payment_id)
        await payments.request_refund(payment)
        refund_event = payments.scripted.decide(f"refund-{payment_id}")
        assert status_of(await payments.webhook(refund_event)) == HANDLED
        assert status_of(await payments.webhook(told_late)) == REPEATED
        assert status_of(await payments.webhook(refund_event)) == HANDLED
        assert (await payments.payment(payment_id)).status is PaymentStatus.REFUNDED
        assert len(payments.told(REFUNDED)) == 1
        await check_one_credit(payments, payment_id)


async def test_a_decline_that_is_told_after_the_capture_is_rejected(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id, event = await captured(payments)
        declined = event | {"event_id": "second-thoughts", "type": "charge.declined"}
        assert status_of(await payments.webhook(declined)) == REFUSED
        assert (await payments.payment(payment_id)).status is PaymentStatus.CAPTURED
        assert ("REFUSED", "the payment is CAPTURED already") in await kept(payments)
        await check_one_credit(payments, payment_id)


async def test_a_capture_that_is_told_after_the_decline_is_booked(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id, declines=True)
        assert status_of(await payments.webhook(event)) == HANDLED
        assert status_of(await payments.webhook(event | {"event_id": "x", "type": "charge.captured"})) == HANDLED
        assert (await payments.payment(payment_id)).status is PaymentStatus.CAPTURED
        await check_one_credit(payments, payment_id)
        assert status_of(await payments.webhook(event)) == HANDLED  # as it was answered first
        assert status_of(await payments.webhook(event | {"event_id": "y"})) == REFUSED


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
async def test_events_in_any_order_and_twice_lead_to_one_end(
    new_database_url: NewDatabaseUrl, order: tuple[int, ...]
) -> None:
    """The capture was asked for; then its event, those of two refunds, and a lie about the amount come as they like."""
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        capture_event = payments.scripted.decide(payment_id)
        await payments.application.resumer.resume()
        part = (await payments.refund_part(payment_id, "r", 800)).refund
        await payments.request_refund(await payments.payment(payment_id))
        told = [
            capture_event,
            payments.scripted.decide(part.refund_id),
            payments.scripted.decide(f"refund-{payment_id}"),
            capture_event | {"event_id": "a-lie", "data": capture_event["data"] | {"amount_minor": 1}},
        ]
        for number in (*order, *order):
            assert (await payments.webhook(told[number])).status_code == 200
        payment = await payments.payment(payment_id)
        assert (payment.status, payment.refunded_minor) == (PaymentStatus.REFUNDED, TOTAL_MINOR)
        assert len(payments.told(REFUNDED)) == 2
        statistics = await payments.application.use_cases.queries.statistics()
        assert statistics.gateway_events == {HANDLED: 2, REPEATED: 1, REFUSED: 1}
        assert statistics.ledger == {"gateway": 0, "buyer-funds": 0}
        await check_one_credit(payments, payment_id)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"refund_id": "unknown's"}, "the payment has no refund"),
        ({"amount_minor": 799}, "the refund is of 800, not 799"),
        ({"currency": "EUR"}, "the payment is in CNY, not EUR"),
        ({"order_id": "order-2"}, "the payment is of order 'order-1'"),
    ],
)
async def test_a_webhook_of_a_refund_that_does_not_match_moves_nothing(
    new_database_url: NewDatabaseUrl, changes: dict[str, Any], reason: str
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id, _ = await captured(payments)
        refund = (await payments.refund_part(payment_id, "r", 800)).refund
        event = payments.scripted.decide(refund.refund_id)
        assert status_of(await payments.webhook(event, **changes)) == REFUSED
        assert reason in str((await kept(payments))[-1][1])
        assert (await payments.payment(payment_id)).refunded_minor == 0
        assert payments.told(REFUNDED) == []


async def test_a_refund_of_another_payment_is_not_taken_for_this_one(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id, _ = await captured(payments)
        other_id = await pending(payments, "order-2")
        await payments.webhook(payments.scripted.decide(other_id))
        refund = (await payments.refund_part(payment_id, "r", 800)).refund
        event = payments.scripted.decide(refund.refund_id)
        answer = await payments.webhook(event, charge_id=other_id, order_id="order-2")
        assert status_of(answer) == REFUSED
        assert (await payments.payment(other_id)).refunded_minor == 0


async def test_money_that_moved_while_the_queue_is_down_is_taken_kept_and_told_once(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id)
        payments.queue.is_down = True
        for _ in range(2):
            assert status_of(await payments.webhook(event)) == HANDLED
        assert (await payments.payment(payment_id)).status is PaymentStatus.CAPTURED
        assert (await payments.get("/statistics")).json()["outbox_messages"] == 1
        with pytest.raises(PublishError):
            await payments.application.relay.relay()
        assert payments.told(SUCCEEDED) == []
        payments.queue.is_down = False
        assert await payments.application.relay.relay() == 1
        await check_one_credit(payments, payment_id)
        assert (await payments.get("/statistics")).json()["outbox_messages"] == 0


async def test_a_queue_that_rejects_the_half_message_is_no_reason_to_reject_the_webhook(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)

        async def reject(*_: object) -> None:
            raise PublishError("no room")

        with monkeypatch.context() as patched:
            patched.setattr(payments.queue, "send_in_transaction", reject)
            assert status_of(await payments.webhook(payments.scripted.decide(payment_id))) == HANDLED
        assert await payments.application.relay.relay() == 1
        await check_one_credit(payments, payment_id)


async def test_a_database_that_is_away_asks_the_gateway_to_come_again(
    new_database_url: NewDatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(_unit: SqlUnitOfWork) -> None:
        raise StorageUnavailableError("the disk is full")

    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id)
        with monkeypatch.context() as patched:
            patched.setattr(SqlUnitOfWork, "commit", fail)
            answer = await payments.webhook(event)
            assert (answer.status_code, answer.json()["type"]) == (503, "urn:hourglass:problem:storage-unavailable")
        await payments.check_back()
        assert (await payments.payment(payment_id)).status is PaymentStatus.CREATED
        assert status_of(await payments.webhook(event)) == HANDLED
        await check_one_credit(payments, payment_id)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"event_id": ""}, "event_id"),
        ({"event_id": "a\u0000b"}, "event_id"),
        ({"event_id": "e" * 256}, "event_id"),
        ({"event_id": None}, "event_id"),
        ({"type": "charge.disputed"}, "type"),
        ({"occurred_at_ms": "1"}, "occurred_at_ms"),
        ({"occurred_at_ms": -1}, "occurred_at_ms"),
        ({"occurred_at_ms": 2**63}, "occurred_at_ms"),
        ({"data": None}, "data"),
        ({"data": {"amount_minor": "15800"}}, "data.amount_minor"),
        ({"data": {"amount_minor": 15800.0}}, "data.amount_minor"),
        ({"data": {"amount_minor": True}}, "data.amount_minor"),
        ({"data": {"amount_minor": 0}}, "data.amount_minor"),
        ({"data": {"amount_minor": 2**63}}, "data.amount_minor"),
        ({"data": {"charge_id": "p" * 129}}, "data.charge_id"),
        ({"data": {"currency": "yuan"}}, "data.currency"),
        ({"data": {"decline_reason": "a\u0000b"}}, "data.decline_reason"),
        ({"type": "refund.refunded"}, "body"),
    ],
)
async def test_a_signed_body_that_is_no_event_is_rejected_by_its_field(
    new_database_url: NewDatabaseUrl, changes: dict[str, Any], field: str
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id)
        data = changes.get("data", {})
        body = event | changes | {"data": None if data is None else event["data"] | data}
        answer = await payments.signed(json.dumps(body).encode())
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:hourglass:problem:not-a-webhook")
        assert answer.json()["detail"].startswith(f"{field}: ")
        assert await kept(payments) == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"event_id": NaN}', b"[" * 5000])
async def test_a_signed_body_that_is_no_json_object_is_rejected(new_database_url: NewDatabaseUrl, body: bytes) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        answer = await payments.signed(body)
        assert (answer.status_code, answer.json()["type"]) == (422, "urn:hourglass:problem:not-a-webhook")


async def test_members_that_are_not_known_are_the_gateways_own_business(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payment_id = await pending(payments)
        event = payments.scripted.decide(payment_id)
        assert status_of(await payments.webhook(event | {"api_version": 7}, risk={"score": 0.1})) == HANDLED


async def test_a_webhook_is_not_limited_in_its_rate_and_needs_no_token(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments"), rate_limit=RateLimit(3, 60)) as payments:
        _, event = await captured(payments)
        answers = [await payments.webhook(event) for _ in range(10)]
        assert {answer.status_code for answer in answers} == {200}
