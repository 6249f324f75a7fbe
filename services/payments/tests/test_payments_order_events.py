"""What payments learns of orders, whatever number and order its events come in."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from payments.domain.errors import StatusChangedError
from payments.domain.gateway_event import PayableOrder, PayableStatus, Terms
from payments.service import events
from payments.service.events import read_order_event
from payments.testing import BUYER, TOTAL_MINOR, RunningPayments, order_event, running_payments
from servicekit.errors import MalformedMessageError
from servicekit.testing.databases import NewDatabaseUrl

TERMS = Terms(BUYER, TOTAL_MINOR, "CNY", 1_700_001_800_000)
CREATED, PAID, CLOSED = events.CREATED_TAG, events.PAID_TAG, events.CLOSED_TAG


async def known(payments: RunningPayments, order_id: str = "order-1") -> PayableOrder | None:
    async with payments.application.units.snapshot() as unit:
        return await unit.payable_orders.find(order_id)


@pytest.mark.mechanism("X9")
async def test_an_order_that_was_created_can_be_paid_until_it_is_over(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        assert await known(payments) is None
        await payments.tell(order_event(CREATED))
        assert await known(payments) == PayableOrder("order-1", PayableStatus.OPEN, TERMS)
        await payments.tell(order_event(PAID))
        assert await known(payments) == PayableOrder("order-1", PayableStatus.PAID, TERMS)
        await payments.tell(order_event(CLOSED))
        assert await known(payments) == PayableOrder("order-1", PayableStatus.CLOSED, TERMS)


@pytest.mark.mechanism("X9")
@pytest.mark.parametrize("tags", list(itertools.permutations([CREATED, CREATED, CLOSED, CLOSED], 4))[::3])
async def test_events_that_come_twice_and_in_any_order_lead_to_one_end(
    new_database_url: NewDatabaseUrl, tags: tuple[str, ...]
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.tell(*(order_event(tag) for tag in tags))
        assert await known(payments) == PayableOrder("order-1", PayableStatus.CLOSED, TERMS)


async def test_an_order_that_closed_before_it_was_heard_of_stays_closed(new_database_url: NewDatabaseUrl) -> None:
    without_terms: dict[str, Any] = dict.fromkeys(("buyer_id", "total_minor", "currency", "expires_at_ms"))
    async with running_payments(new_database_url("payments")) as payments:
        await payments.tell(order_event(CLOSED, **without_terms))
        assert await known(payments) == PayableOrder("order-1", PayableStatus.CLOSED, None)
        # Its buyer is unknown: so no caller is told that it was there.
        assert (await payments.post_payment("k")).json()["type"].endswith("unknown-order")
        await payments.tell(order_event(CREATED))
        assert await known(payments) == PayableOrder("order-1", PayableStatus.CLOSED, TERMS)
        assert (await payments.post_payment("k")).json()["type"].endswith("order-closed")


async def test_two_processes_that_learn_of_one_order_at_once_do_not_overwrite_each_other(
    new_database_url: NewDatabaseUrl,
) -> None:
    order = PayableOrder("order-1", PayableStatus.OPEN, TERMS)
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        async with payments.application.units.writing() as unit:
            with pytest.raises(StatusChangedError):
                await unit.payable_orders.add(order)
        async with payments.application.units.writing() as unit:
            assert not await unit.payable_orders.change(PayableStatus.PAID, order)


def test_an_event_that_names_both_moments_is_of_a_closed_order() -> None:
    body = order_event(CLOSED, paid_at_ms=1, created_at_ms=1).body
    assert read_order_event(body).status is PayableStatus.CLOSED


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"order_id": None}, "order_id"),
        ({"order_id": ""}, "order_id"),
        ({"created_at_ms": None}, "created_at_ms"),
        ({"buyer_id": None}, "buyer_id"),
        ({"buyer_id": 7}, "buyer_id"),
        ({"total_minor": "15800"}, "total_minor"),
        ({"total_minor": 158.0}, "total_minor"),
        ({"total_minor": True}, "total_minor"),
        ({"currency": None}, "currency"),
        ({"expires_at_ms": None}, "expires_at_ms"),
    ],
)
async def test_a_created_event_that_cannot_be_understood_is_not_taken(
    new_database_url: NewDatabaseUrl, changes: dict[str, Any], complaint: str
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        with pytest.raises(MalformedMessageError, match=complaint):
            await payments.tell(order_event(CREATED, **changes))
        assert await known(payments) is None


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff"])
def test_a_body_that_is_no_json_object_is_malformed(body: bytes) -> None:
    for read in (read_order_event, events.read_refund_requested):
        with pytest.raises(MalformedMessageError):
            read(body)


async def test_a_caller_that_sees_all_payments_is_told_what_was_heard_of_orders(
    new_database_url: NewDatabaseUrl,
) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.tell(order_event(CREATED), order_event(CREATED, "order-2"), order_event(CLOSED, "order-2"))
        answer = await payments.get("/payable-orders?order_id=order-2&order_id=unknown&order_id=order-1")
        assert answer.json() == {
            "items": [{"order_id": "order-1", "status": "OPEN"}, {"order_id": "order-2", "status": "CLOSED"}]
        }
        for query in ("", "?order_id=%20", "?" + "&".join(f"order_id=o-{number}" for number in range(101))):
            assert (await payments.get(f"/payable-orders{query}")).status_code == 422, query
