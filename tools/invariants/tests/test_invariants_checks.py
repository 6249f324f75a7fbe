"""Each invariant against a shop that breaks it and nothing else; and all of them against a healthy shop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from shop_rows import AWAITING, COUNTED, JUST_NOW, LONG_AGO, NOW, PRICE, STOCK, Shop, healthy_shop
from sqlalchemy import text

from hourglass_invariants import Kind, Violation, check
from hourglass_invariants.checking import read_checks
from orders.adapters import tables as orders
from payments.adapters import tables as payments
from sandbox_gateway import sql as gateway
from servicekit.sql.database import Database
from servicekit.sql.schema import SHARDS
from servicekit.testing.databases import NewDatabaseUrl

PLANTS: dict[str, Callable[[Shop], object]] = {}


def plants(plant: Callable[[Shop], object]) -> Callable[[Shop], object]:
    """The function is named after the check that has to find what it does."""
    PLANTS[plant.__name__] = plant
    return plant


@plants
def ledger_balances(shop: Shop) -> None:
    shop.find(payments.ledger_entries, payment_id="p-paid", account="buyer-funds")["amount_minor"] += 1


@plants
def captures_are_posted_once(shop: Shop) -> None:
    """The money was taken and posted, and the payment says that it was declined."""
    shop.find(gateway.charges, charge_id="p-declined").update(status="captured", decline_reason=None)
    shop.post("p-declined", None, PRICE)


@plants
def refunds_are_posted_once(shop: Shop) -> None:
    """The money went back and was posted, and the refund says that it was only asked for."""
    shop.post("p-shipped", "r-new", 10)
    shop.gateway_refund("r-new", "p-shipped", 10)


@plants
def refunds_within_captures(shop: Shop) -> None:
    shop.find(payments.refunds, refund_id="r-new")["currency"] = "USD"


@plants
def payments_match_their_refunds(shop: Shop) -> None:
    shop.find(payments.payments, payment_id="p-paid")["refund_requested_minor"] = 1


@plants
def double_captures(shop: Shop) -> None:
    """Bug zoo: the guard of the database is gone, and a second payment went through; its refund is only asked for."""
    shop.statements.append(("payments", "DROP INDEX uq_payments_live"))
    shop.payment("p-second", "o-paid")
    shop.refund_request("p-second", "o-paid", at_ms=JUST_NOW)


@plants
def paid_orders_have_their_money(shop: Shop) -> None:
    """Bug zoo 32: a callback of another amount was taken for the order's."""
    shop.order("o-cheap", (AWAITING, "paid"), payment_id="p-cheap")
    shop.payment("p-cheap", "o-cheap", amount=1)


@plants
def captures_pay_or_go_back(shop: Shop) -> None:
    shop.payment("p-lost", "o-expired")


@plants
def refund_requests_are_heard(shop: Shop) -> None:
    shop.payment("p-lost", "o-expired")
    shop.refund_request("p-lost", "o-expired")


@plants
def gateway_book_is_the_ledger(shop: Shop) -> None:
    shop.charge("p-unknown", "o-expired", "captured")


@plants
def charges_have_their_payments_terms(shop: Shop) -> None:
    shop.find(gateway.charges, charge_id="p-paid")["order_id"] = "o-another"


@plants
def refused_gateway_events(shop: Shop) -> None:
    shop.event("event-3", "REFUSED", "the amount is 1 CNY and the payment's is 100 CNY")


@plants
def order_totals(shop: Shop) -> None:
    shop.find(orders.order_lines, order_id="o-waiting")["unit_price_minor"] = PRICE + 1


@plants
def stock_reserved(shop: Shop) -> None:
    """Bug zoo 33: an order was closed and its unit is still reserved."""
    seat = shop.find(orders.products, product_id="seat")
    seat["available"], seat["reserved"] = seat["available"] - 1, seat["reserved"] + 1


@plants
def stock_sold(shop: Shop) -> None:
    seat = shop.find(orders.products, product_id="seat")
    seat["available"], seat["sold"] = seat["available"] - 1, seat["sold"] + 1


@plants
def stock_constant(shop: Shop) -> None:
    shop.find(orders.products, product_id="seat")["available"] += 1


@plants
def stuck_orders(shop: Shop) -> None:
    shop.find(orders.orders, order_id="o-waiting")["expires_at_ms"] = LONG_AGO


@plants
def stuck_shipments(shop: Shop) -> None:
    shop.find(orders.orders, order_id="o-shipped")["shipped_at_ms"] = NOW - 8 * 86_400_000


@plants
def early_closings(shop: Shop) -> None:
    shop.find(orders.orders, order_id="o-expired")["expires_at_ms"] = LONG_AGO + 1


@plants
def stuck_payments(shop: Shop) -> None:
    shop.find(payments.payments, payment_id="p-new")["created_at_ms"] = LONG_AGO


@plants
def stuck_refunds(shop: Shop) -> None:
    shop.find(payments.refunds, refund_id="r-new")["requested_at_ms"] = LONG_AGO


@plants
def failed_refunds(shop: Shop) -> None:
    shop.find(payments.refunds, refund_id="r-new").update(status="FAILED", failure="the account is closed")


@plants
def stuck_outbox(shop: Shop) -> None:
    shop.add(
        payments.outbox.table,
        topic="payment-events",
        tag="succeeded",
        message_key="o-paid",
        body=b"{}",
        created_at_ms=LONG_AGO,
    )


@plants
def order_history(shop: Shop) -> None:
    shop.find(orders.orders, order_id="o-paid")["version"] += 1


@plants
def payment_history(shop: Shop) -> None:
    shop.remove(payments.payment_history, payment_id="p-paid", new_status="CREATED")


@plants
def payments_know_the_orders(shop: Shop) -> None:
    shop.find(payments.payable_orders, order_id="o-expired")["status"] = "OPEN"


@plants
def refunded_orders_are_not_shipped(shop: Shop) -> None:
    shop.refund("r-whole", "p-paid", PRICE)


@plants
def orders_counters(shop: Shop) -> None:
    shop.statements.append(("orders", _counted_elsewhere("orders/CLOSED")))


@plants
def payments_counters(shop: Shop) -> None:
    """Of money that is nowhere in the ledger."""
    shop.statements.append(("payments", _counted_elsewhere("captured")))


def _counted_elsewhere(name: str) -> str:
    """One more, in a shard that no trigger adds to."""
    return f"INSERT INTO counters (name, shard, value) VALUES ('{name}', {SHARDS}, 1)"


KINDS = {one.name: one.kind for one in read_checks()}
DAY_MS = 86_400_000


def names(violations: Sequence[Violation]) -> set[str]:
    return {violation.check for violation in violations}


async def test_nothing_is_wrong_with_a_healthy_shop(new_database_url: NewDatabaseUrl) -> None:
    sources = await healthy_shop().write(new_database_url)
    assert await check(sources, NOW, stock=STOCK) == []


async def test_nothing_is_wrong_with_an_empty_shop(new_database_url: NewDatabaseUrl) -> None:
    assert await check(await Shop().write(new_database_url), NOW) == []


@pytest.mark.parametrize("name", sorted(PLANTS))
async def test_what_is_wrong_is_found_by_its_own_check_and_by_no_other(
    name: str, new_database_url: NewDatabaseUrl
) -> None:
    shop = healthy_shop()
    PLANTS[name](shop)
    sources = await shop.write(new_database_url)
    found = await check(sources, NOW, stock=STOCK)
    assert (names(found), len(found)) == ({name}, 1)
    patient = await check(sources, NOW, stock=STOCK, grace_ms=10 * DAY_MS)
    assert names(patient) == (set() if KINDS[name] is Kind.QUIET else {name})


@pytest.mark.parametrize("service", COUNTED)
async def test_each_counter_is_compared_with_its_rows(service: str, new_database_url: NewDatabaseUrl) -> None:
    sources = await healthy_shop().write(new_database_url)
    database = Database(new_database_url(service))
    try:
        async with database.writing() as connection:
            counted = set((await connection.execute(text("SELECT name FROM counters"))).scalars())
            await connection.execute(text("DELETE FROM counters"))
            await connection.commit()
    finally:
        await database.dispose()
    found = await check(sources, NOW, stock=STOCK)
    assert names(found) == {f"{service}_counters"}
    assert {violation.row["counter"] for violation in found} == counted
    assert {violation.row["value"] for violation in found} == {0}


async def test_without_grace_everything_has_to_be_finished(new_database_url: NewDatabaseUrl) -> None:
    sources = await healthy_shop().write(new_database_url)
    found = await check(sources, NOW, grace_ms=0)
    assert names(found) == {"stuck_payments", "stuck_refunds"}


def test_every_check_has_a_test() -> None:
    assert set(PLANTS) == set(KINDS)
