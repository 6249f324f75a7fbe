"""The ledger: what is posted, that it balances, and that the database keeps it so."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DatabaseError

from payments.domain.errors import PostedBeforeError
from payments.domain.ledger import Account, Entry, Posting, capture_posting, refund_posting
from payments.domain.payment import PaymentMethod, PaymentRequest, begin
from payments.domain.refund import Refund
from payments.testing import TOTAL_MINOR, RunningPayments, Step, running_payments
from servicekit.testing.databases import NewDatabaseUrl

CREATED, _ = begin("p", PaymentRequest("o", "b", 100, "CNY", PaymentMethod.CARD), 1)
REFUND = Refund("r", "p", 40, "CNY", "why", "operator", 3)


async def entries(payments: RunningPayments) -> list[tuple[str, str, int]]:
    async with payments.database.snapshot() as connection:
        rows = await connection.execute(
            text("SELECT posting_id, account, amount_minor FROM ledger_entries ORDER BY entry_id")
        )
        return [(row.posting_id, row.account, row.amount_minor) for row in rows]


def test_a_capture_is_booked_at_the_gateway_and_for_the_buyers() -> None:
    captured, _ = CREATED.captured(5)
    assert capture_posting(captured) == Posting(
        "capture/p", "p", None, "CNY", 5, (Entry(Account.GATEWAY, 100), Entry(Account.BUYER_FUNDS, -100))
    )
    with pytest.raises(ValueError, match="nothing to post"):
        capture_posting(CREATED)


def test_a_refund_is_booked_the_other_way() -> None:
    assert refund_posting(REFUND.refunded(9)) == Posting(
        "refund/r", "p", "r", "CNY", 9, (Entry(Account.GATEWAY, -40), Entry(Account.BUYER_FUNDS, 40))
    )
    with pytest.raises(ValueError, match="nothing to post"):
        refund_posting(REFUND)


@pytest.mark.parametrize("amounts", [(), (0,), (5,), (5, -4), (5, -4, -2)])
def test_a_posting_that_does_not_balance_cannot_be_made(amounts: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="do not sum to zero"):
        Posting("x", "p", None, "CNY", 1, tuple(Entry(Account.GATEWAY, amount) for amount in amounts))


async def test_money_that_comes_and_goes_is_booked_once_each_time(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        refund = (await payments.refund_part(payment.payment_id, "r", 800)).refund
        await payments.request_refund(payment)
        captured = f"capture/{payment.payment_id}"
        part, rest = f"refund/{refund.refund_id}", f"refund/refund-{payment.payment_id}"
        assert await entries(payments) == [
            (captured, "gateway", TOTAL_MINOR),
            (captured, "buyer-funds", -TOTAL_MINOR),
            (part, "gateway", -800),
            (part, "buyer-funds", 800),
            (rest, "gateway", 800 - TOTAL_MINOR),
            (rest, "buyer-funds", TOTAL_MINOR - 800),
        ]


async def test_a_payment_that_is_declined_or_undecided_is_not_booked(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        payments.scripted.script = [Step.DECLINE, Step.PEND]
        await payments.open_order()
        for key in ("k1", "k2"):
            await payments.pay(key)
        assert await entries(payments) == []


async def test_the_database_itself_rejects_a_second_credit_for_one_payment(new_database_url: NewDatabaseUrl) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        payment = (await payments.pay("k")).payment
        before = await entries(payments)
        with pytest.raises(PostedBeforeError):
            async with payments.application.units.writing() as unit:
                await unit.ledger.post(capture_posting(payment))
        assert await entries(payments) == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE ledger_entries SET amount_minor = 1",
        "DELETE FROM ledger_entries",
        "UPDATE payments SET refund_requested_minor = amount_minor + 1",
        "UPDATE payments SET refunded_minor = 1",
        "INSERT INTO ledger_entries (posting_id, account, amount_minor, currency, at_ms, payment_id)"
        " SELECT 'again', 'gateway', 1, 'CNY', 1, payment_id FROM payments",
        "INSERT INTO ledger_entries (posting_id, account, amount_minor, currency, at_ms, payment_id)"
        " SELECT 'capture/' || payment_id, 'pocket', 1, 'CNY', 1, payment_id FROM payments",
    ],
)
async def test_the_database_itself_keeps_what_is_booked(new_database_url: NewDatabaseUrl, statement: str) -> None:
    async with running_payments(new_database_url("payments")) as payments:
        await payments.open_order()
        await payments.pay("k")
        before = await entries(payments)
        with pytest.raises(DatabaseError):
            async with payments.database.writing() as connection:
                await connection.execute(text(statement))
        assert await entries(payments) == before
