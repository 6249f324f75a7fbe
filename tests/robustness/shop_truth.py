"""What buyers and sellers were told in a round, and whether the shop still knows it when everything is quiet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import httpx

from hourglass_local.books import Books
from hourglass_local.shop import CAPTURED, CLOSED, COMPLETED, DECLINED, REFUNDED, SHIPPED, Order, Payment

SERVER_ERROR = 500  # the one that a service gives for what it did not expect; 503 is an answer
SHOWN_CHARACTERS = 300


@dataclass
class Truth:
    """Everything that clients were told, as it was told; `wrong` are answers that should never be given."""

    placed: dict[str, Order] = field(default_factory=dict)  # by order id, as it was answered first
    ordered: dict[tuple[str, str], str] = field(default_factory=dict)  # (buyer, key) -> order id
    paid: dict[str, Payment] = field(default_factory=dict)  # by payment id, the last answer
    shipped: set[str] = field(default_factory=set)  # order ids, as the following
    confirmed: set[str] = field(default_factory=set)
    cancelled: set[str] = field(default_factory=set)
    refunded: dict[str, int] = field(default_factory=dict)  # refund id -> money
    rejections: Counter[str] = field(default_factory=Counter)  # by kind of problem
    wrong: list[str] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)  # to what was asked for and done, by the service's port

    def order(self, buyer_id: str, key: str, answer: Order) -> None:
        """An order was answered with 201."""
        first = self.ordered.setdefault((buyer_id, key), answer.order_id)
        if first != answer.order_id:
            self.wrong.append(f"{buyer_id} placed two orders with the key {key}: {first} and {answer.order_id}")
        self.placed.setdefault(answer.order_id, answer)

    def payment(self, answer: Payment) -> None:
        """A payment was answered as decided."""
        before = self.paid.setdefault(answer.payment_id, answer)
        if before.took_money is not answer.took_money:
            self.wrong.append(f"payment {answer.payment_id} was answered as {before.status} and as {answer.status}")

    async def see(self, response: httpx.Response) -> None:
        """Called for every answer of a service."""
        if response.is_success and response.request.method != "GET":
            self.answers[str(response.request.url.port)] += 1
        if response.status_code == SERVER_ERROR:
            await response.aread()
            request = response.request
            text = response.text[:SHOWN_CHARACTERS]
            self.wrong.append(f"{request.method} {request.url.path} was answered 500: {text}")


def problems(truth: Truth, books: Books) -> list[str]:
    """What was told and is not so, and what is so and was never told, as sentences."""
    return [*truth.wrong, *_order_problems(truth, books), *_payment_problems(truth, books)]


def _order_problems(truth: Truth, books: Books) -> Iterator[str]:
    yield from _missing("orders were answered with 201 and are not there", truth.placed.keys() - books.orders.keys())
    yield from _missing("orders are there without an answer", books.orders.keys() - truth.placed.keys())
    for order_id, told in truth.placed.items():
        order = books.orders.get(order_id)
        if order is None:
            continue
        if (order.buyer_id, order.items, order.total_minor) != (told.buyer_id, told.items, told.total_minor):
            yield f"order {order_id} was answered as {told} and is {order}"
    wanted = (
        ("shipped", truth.shipped, (SHIPPED, COMPLETED)),
        ("confirmed", truth.confirmed, (COMPLETED,)),
        ("cancelled", truth.cancelled, (CLOSED,)),
    )
    for deed, ids, statuses in wanted:
        others = {
            order_id for order_id in ids if order_id in books.orders and books.orders[order_id].status not in statuses
        }
        yield from _missing(f"orders were answered as {deed} and are not", others)


def _payment_problems(truth: Truth, books: Books) -> Iterator[str]:
    yield from _missing("payments were answered and are not there", truth.paid.keys() - books.payments.keys())
    there = {payment_id: told for payment_id, told in truth.paid.items() if payment_id in books.payments}
    taken = {one for one, told in there.items() if told.took_money and not books.payments[one].took_money}
    yield from _missing(f"payments were answered as {CAPTURED} and are not", taken)
    declined = {
        one for one, told in there.items() if told.status == DECLINED and books.payments[one].status != DECLINED
    }
    yield from _missing(f"payments were answered as {DECLINED} and are not", declined)
    for refund_id, amount_minor in truth.refunded.items():
        refund = books.refunds.get(refund_id)
        if refund is None or (refund.status, refund.amount_minor) != (REFUNDED, amount_minor):
            yield f"a refund {refund_id} of {amount_minor} was answered, and there is {refund}"


def _missing(sentence: str, ids: Collection[str]) -> Iterator[str]:
    if ids:
        yield f"{len(ids)} {sentence}: {', '.join(sorted(ids)[:5])}"
