"""The HTTP face: answers, headers, pages."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from osenv import SimClock
from payments.domain.payment import Payment, PaymentStatus
from payments.service import events
from payments.testing import BUYER, TOTAL_MINOR, RunningPayments, ScriptedGateway, Step, order_event, running_payments
from servicekit.config import SQLITE_PREFIX
from servicekit.testing import until
from servicekit.testing.databases import NewDatabaseUrl


def scripted(*script: Step) -> ScriptedGateway:
    return ScriptedGateway(SimClock(), *script)


async def everything(payments: RunningPayments, **parameters: Any) -> list[list[dict[str, Any]]]:
    """All pages of the list."""
    pages = []
    cursor: str | None = None
    while True:
        wanted = parameters | ({} if cursor is None else {"cursor": cursor})
        answer = await payments.get(f"/payments?{httpx.QueryParams(wanted)}")
        assert answer.status_code == 200, answer.text
        pages.append(answer.json()["items"])
        cursor = answer.json()["next_cursor"]
        if cursor is None:
            return pages


async def test_an_order_is_paid_and_the_payment_read_with_its_history(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        paid = await payments.post_payment("k", method="wallet")
        payment = paid.json()
        path = f"/payments/{payment['payment_id']}"
        assert (paid.status_code, paid.headers["Location"]) == (201, path)
        now_ms = payments.clock.wall_ms()
        assert payment == {
            "payment_id": payment["payment_id"],
            "order_id": "order-1",
            "buyer_id": BUYER,
            "amount_minor": TOTAL_MINOR,
            "currency": "CNY",
            "method": "wallet",
            "status": "CAPTURED",
            "created_at_ms": now_ms,
            "captured_at_ms": now_ms,
            "refunded_minor": 0,
            "refunded_at_ms": None,
            "decline_reason": None,
        }
        assert (await payments.get(path)).json() == payment
        await payments.request_refund(await payments.payment(payment["payment_id"]))
        assert (await payments.get(path)).json() == payment | {
            "status": "REFUNDED",
            "refunded_minor": TOTAL_MINOR,
            "refunded_at_ms": now_ms,
        }
        history = (await payments.get(f"{path}/history")).json()
        assert [(change["old_status"], change["new_status"], change["reason"]) for change in history["changes"]] == [
            (None, "CREATED", "requested"),
            ("CREATED", "CAPTURED", "captured"),
            ("CAPTURED", "REFUNDED", "refunded"),
        ]


async def test_a_repeated_request_gets_the_same_answer_marked_as_replayed(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        first = await payments.post_payment("k")
        await payments.tell(order_event(events.CLOSED_TAG))
        await payments.request_refund(await payments.payment(first.json()["payment_id"]))
        again = await payments.post_payment("k")
        assert (again.status_code, again.content) == (201, first.content)
        assert again.headers["Location"] == first.headers["Location"]
        assert again.headers["Idempotency-Replayed"] == "true"
        assert "Idempotency-Replayed" not in first.headers


async def test_a_payment_in_progress_is_accepted_and_answered_in_full_once_it_is_finished(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments"), gateway=scripted(Step.FAIL_AFTER)) as payments:
        await payments.open_order()
        for replayed in (False, True):
            answer = await payments.post_payment("k")
            assert (answer.status_code, answer.json()["status"]) == (202, "CREATED")
            assert answer.headers["Retry-After"] == "1"
            assert answer.headers["Location"] == f"/payments/{answer.json()['payment_id']}"
            assert ("Idempotency-Replayed" in answer.headers) == replayed
        await payments.application.resumer.resume()
        answer = await payments.post_payment("k")
        assert (answer.status_code, answer.json()["status"]) == (201, "CAPTURED")
        assert answer.headers["Idempotency-Replayed"] == "true"


async def test_concurrent_requests_with_one_key_pay_once(new_database_url: NewDatabaseUrl) -> None:
    gateway = scripted(Step.HOLD)
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        await payments.open_order()
        first = asyncio.create_task(payments.post_payment("k"))
        await until(lambda: gateway.calls == 1)
        answers = await asyncio.gather(*(payments.post_payment("k") for _ in range(3)))
        gateway.release.set()
        answers.append(await first)
        assert [answer.status_code for answer in answers] == [409, 409, 409, 201]
        assert len(payments.told(events.SUCCEEDED_TAG)) == 1


async def test_concurrent_requests_with_different_keys_pay_once(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        answers = await asyncio.gather(*(payments.post_payment(f"k{n}") for n in range(4)))
        assert sorted(answer.status_code for answer in answers) == [201, 409, 409, 409]
        assert len(payments.told(events.SUCCEEDED_TAG)) == 1


async def test_payments_are_listed_newest_first_in_pages_and_by_order(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments"), gateway=scripted(Step.DECLINE)) as payments:
        made: list[Payment] = []
        for n in (0, 0, 1, 2, 3, 4, 5):
            await payments.open_order(f"order-{n}")
            await payments.post_payment(f"k{len(made)}", order_id=f"order-{n}")
            made.append((await payments.payments(f"order-{n}"))[0])
            if n % 3 == 0:  # the others share a millisecond
                await payments.clock.advance(1)
        pages = await everything(payments, limit=3)
        assert [len(page) for page in pages] == [3, 3, 1]
        listed = [payment for page in pages for payment in page]
        assert sorted(payment["payment_id"] for payment in listed) == sorted(one.payment_id for one in made)
        created = [payment["created_at_ms"] for payment in listed]
        assert created == sorted(created, reverse=True)
        (of_one,) = await everything(payments, order_id="order-0")
        assert [payment["status"] for payment in of_one] == ["CAPTURED", "DECLINED"]
        assert await everything(payments, order_id="ghost") == [[]]


async def test_statistics_set_the_database_beside_the_gateways_own_book(new_database_url: NewDatabaseUrl) -> None:
    gateway = scripted(Step.DECLINE, Step.SUCCEED, Step.SUCCEED, Step.FAIL_AFTER)
    async with running_payments(new_database_url("payments"), gateway=gateway) as payments:
        nothing = (await payments.get("/statistics")).json()
        assert nothing["payments"] == dict.fromkeys((status.value for status in PaymentStatus), 0)
        for n in (0, 0, 1, 2):
            await payments.open_order(f"order-{n}")
            await payments.pay(f"k{len(await everything(payments))}-{n}-{gateway.calls}", f"order-{n}")
        (refunded,) = await payments.payments("order-1")
        await payments.request_refund(refunded)
        assert (await payments.get("/statistics")).json() == {
            "payments": {"CREATED": 1, "CAPTURED": 1, "DECLINED": 1, "PARTIALLY_REFUNDED": 0, "REFUNDED": 1},
            "refunds": {"REQUESTED": 0, "FAILED": 0, "REFUNDED": 1},
            "captured_minor": 2 * TOTAL_MINOR,
            "refunded_minor": TOTAL_MINOR,
            "ledger": {"gateway": TOTAL_MINOR, "buyer-funds": -TOTAL_MINOR},
            "gateway_events": {"HANDLED": 0, "REPEATED": 0, "REFUSED": 0},
            "refused_events": [],
            "outbox_messages": 0,
            "gateway": {
                "captured_minor": 3 * TOTAL_MINOR,  # one is captured and not written down yet
                "refunded_minor": TOTAL_MINOR,
                "captures": 3,
                "refunds": 1,
            },
        }


async def test_health_says_what_works(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        assert (await payments.get("/health/live")).json() == {"status": "live"}
        ready = await payments.get("/health/ready")
        assert (ready.status_code, ready.json()["status"]) == (200, "ready")
        assert ready.json()["checks"] == {"database": "ok"}


@pytest.mark.parametrize("path", ["/health/ready", "/statistics", "/payments"])
async def test_a_database_that_is_gone_is_said_to_be_gone(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    async with running_payments(f"{SQLITE_PREFIX}{folder / 'payments.db'}") as payments:
        await payments.database.dispose()
        shutil.rmtree(folder)
        answer = await payments.get(path)
        assert answer.status_code == 503
        if path == "/health/ready":
            assert "unable to open" in answer.json()["checks"]["database"]
        else:
            assert answer.json()["type"] == "urn:hourglass:problem:storage-unavailable"
            assert answer.headers["Retry-After"] == "1"


async def test_the_methods_are_listed(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        answer = await payments.get("/payments/methods", "buyer")
        assert answer.json() == {"methods": ["card", "wallet", "bank_transfer"]}
