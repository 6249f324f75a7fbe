"""How many statements the use cases cost: on PostgreSQL each is a round trip, beside BEGIN and COMMIT."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, event

from orders.domain.order import RequestedLine
from orders.domain.product import Product
from orders.service.place_order import OrderRequest
from orders.testing import BUYER, SELLER, running_orders
from servicekit.testing.databases import NewDatabaseUrl

# `begun` is the row of the transaction, the first part of what is written in one statement.
PLACING = ["SELECT (SELECT", "WITH begun"]
PAYING = ["SELECT orders", "INSERT mq_inbox", "WITH begun"]
EXPIRING = PAYING
CANCELLING_AS_SELLER = ["SELECT orders", "WITH begun", "INSERT refund_requests"]
SHIPPING = ["SELECT orders", "WITH begun"]


@contextmanager
def statements() -> Iterator[list[str]]:
    """What is executed meanwhile: the word that a statement begins with, and the first table or name in it."""
    executed: list[str] = []

    def note(_connection: Any, _cursor: Any, text: str, *_others: Any) -> None:
        words = text.split()
        after = {"SELECT": "FROM", "INSERT": "INTO", "UPDATE": "UPDATE", "WITH": "WITH"}.get(words[0])
        if after is not None:
            executed.append(f"{words[0]} {words[words.index(after) + 1]}")

    event.listen(Engine, "before_cursor_execute", note)
    try:
        yield executed
    finally:
        event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("lines", [1, 3])
async def test_every_order_costs_as_few_statements_as_there_are_questions(
    new_database_url: NewDatabaseUrl, lines: int
) -> None:
    async with running_orders(new_database_url("orders")) as orders:
        async with orders.database.snapshot() as connection:
            is_postgresql = connection.dialect.name == "postgresql"
        for name in "abc":
            await orders.add_product(Product(name, name, 1, "CNY", available=9))
        request = OrderRequest(BUYER.subject, tuple(RequestedLine(name, 1) for name in "abc"[:lines]))
        place = orders.application.use_cases.place_order
        with statements() as placing:
            placed = (await place(request, "1")).order
        with statements() as paying:
            await orders.pay(placed)
        with statements() as cancelling:
            await orders.cancel(placed.order_id, SELLER)
        other = (await place(request, "2")).order
        await orders.pay(other, "payment-2")
        with statements() as shipping:
            await orders.application.use_cases.ship_order(other.order_id, SELLER)
        third = (await place(request, "3")).order
        await orders.pass_payment_window()
        with statements() as expiring:
            await orders.application.use_cases.close_order.expire(third.order_id)
        found = (placing, paying, cancelling, shipping, expiring)
        expected = (PLACING, PAYING, CANCELLING_AS_SELLER, SHIPPING, EXPIRING)
        for executed, wanted in zip(found, expected, strict=True):
            if is_postgresql:
                assert executed == wanted
            else:  # where a statement costs no hand-over, each table has its own
                assert len(executed) <= len(wanted) + 4 + lines
