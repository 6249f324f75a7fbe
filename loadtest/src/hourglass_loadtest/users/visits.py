"""What users do in the shop. The first request of a visit is intended for the visit's own time, a later one for the
moment in which its buyer has thought enough.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import gevent  # type: ignore[import-untyped]

from hourglass_loadtest.users.plan import (
    GET_ORDER,
    GET_PAYMENT,
    GET_PRODUCT,
    LIST_ORDERS,
    LIST_PRODUCTS,
    MIX,
    PAY,
    PLACE_ORDER,
)
from hourglass_loadtest.users.shopper import Answer, Shopper, TurnedAwayError, UnexpectedAnswerError

LINES_MAX, QUANTITY_MAX = 3, 2
PRODUCTS_SHOWN = 20
LOOKS_MAX = 20  # at a payment that is not decided
LAST_SECOND_S = (-1.0, 0.2)  # around the expiry

CREATED = "CREATED"


class Buyer(Shopper):
    """The steps of all visits."""

    abstract = True

    def look_around(self, intended: float) -> None:
        """The list of products, and one of them."""
        self.ask(LIST_PRODUCTS, f"{self.plan.orders_url}/products?limit={PRODUCTS_SHOWN}", intended)
        self.look_at_one(self.think())

    def look_at_one(self, intended: float) -> None:
        product_id = self.rng.choice(self.plan.product_ids)
        self.ask(GET_PRODUCT, f"{self.plan.orders_url}/products/{product_id}", intended)

    def basket(self) -> dict[str, Any]:
        products = self.rng.sample(
            self.plan.product_ids, min(len(self.plan.product_ids), self.rng.randint(1, LINES_MAX))
        )
        return {"items": [{"product_id": one, "quantity": self.rng.randint(1, QUANTITY_MAX)} for one in products]}

    def order(self, intended: float) -> Mapping[str, Any]:
        """A new order, as it was answered. Raises TurnedAwayError, also when the shelves are empty."""
        return _placed(self.ask(PLACE_ORDER, f"{self.plan.orders_url}/orders", intended, self.basket(), self.key()))

    def pay(self, order: Mapping[str, Any], intended: float, key: str) -> Answer:
        """Pay the whole order, and look until the gateway has decided."""
        wanted = {"order_id": order["order_id"], "amount_minor": order["total_minor"], "currency": order["currency"]}
        url = f"{self.plan.payments_url}/payments"
        answer = self.ask(PAY, url, intended, wanted | {"method": "card"}, key)
        for _ in range(LOOKS_MAX):
            if not answer.is_good or answer.body["status"] != CREATED:
                return answer
            gevent.sleep(1.0 if answer.retry_after_s is None else answer.retry_after_s)
            answer = self.ask(GET_PAYMENT, f"{url}/{answer.body['payment_id']}", time.time())
        raise TurnedAwayError("a payment is not decided")

    def look_at_order(self, order: Mapping[str, Any], intended: float) -> None:
        self.ask(GET_ORDER, f"{self.plan.orders_url}/orders/{order['order_id']}", intended)


class Browser(Buyer):
    """Looks around, at several products and at the own orders, and buys nothing."""

    weight = MIX["Browser"]

    def visit(self, intended: float) -> None:
        self.look_around(intended)
        self.look_at_one(self.think())
        self.ask(LIST_ORDERS, f"{self.plan.orders_url}/orders?limit=5", self.think())


class Payer(Buyer):
    """Orders, pays soon, and looks at the order."""

    weight = MIX["Payer"]

    def visit(self, intended: float) -> None:
        order = self.order(intended)
        self.pay(order, self.think(), self.key())
        self.look_at_order(order, self.think())


class Abandoner(Buyer):
    """Looks at a product, orders, and is never seen again: the order closes by itself."""

    weight = MIX["Abandoner"]

    def visit(self, intended: float) -> None:
        self.look_at_one(intended)
        self.order(self.think())


class LastSecondPayer(Buyer):
    """Orders, and pays around the moment in which the order closes: before it, or too late."""

    weight = MIX["LastSecondPayer"]

    def visit(self, intended: float) -> None:
        order = self.order(intended)
        pays_at = order["expires_at_ms"] / 1000 + self.rng.uniform(*LAST_SECOND_S)
        gevent.sleep(max(0.0, pays_at - time.time()))
        self.pay(order, pays_at, self.key())


class DoubleClicker(Buyer):
    """Clicks twice on everything: both clicks have one key, and make one order and one payment."""

    weight = MIX["DoubleClicker"]

    def visit(self, intended: float) -> None:
        basket, key, url = self.basket(), self.key(), f"{self.plan.orders_url}/orders"
        first, second = self._twice(lambda: _placed(self.ask(PLACE_ORDER, url, intended, basket, key)))
        if first["order_id"] != second["order_id"]:
            self.records.wrong(f"one key has made two orders: {first['order_id']} and {second['order_id']}")
        pay_at, payment_key = self.think(), self.key()
        paid = self._twice(lambda: self.pay(first, pay_at, payment_key))
        payments = {answer.body["payment_id"] for answer in paid if "payment_id" in answer.body}
        if len(payments) > 1:
            self.records.wrong(f"one key has made two payments: {' and '.join(sorted(payments))}")

    def _twice(self, click: Any) -> list[Any]:
        def answered() -> Any:
            try:
                return click()
            except (TurnedAwayError, UnexpectedAnswerError) as error:
                return error  # gevent would print it

        clicks = [gevent.spawn(answered) for _ in range(2)]
        try:
            gevent.joinall(clicks)
        finally:
            gevent.killall(clicks)
        answers = [one.value for one in clicks]
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers


def _placed(answer: Answer) -> Mapping[str, Any]:
    if not answer.is_good:
        raise TurnedAwayError(answer.name)
    return answer.body


VISITORS = (Browser, Payer, Abandoner, LastSecondPayer, DoubleClicker)
