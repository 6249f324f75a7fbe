"""What buyers do and what is written down of it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Any, ClassVar
from uuid import uuid4

import gevent  # type: ignore[import-untyped]
from gevent.pool import Pool  # type: ignore[import-untyped]
from geventhttpclient.client import HTTPClientPool
from locust import task
from locust.contrib.fasthttp import FastHttpUser

from hourglass_loadtest.users.plan import (
    CUT_OFF,
    DONE,
    FAILED,
    GET_ORDER,
    GET_PAYMENT,
    GET_PRODUCT,
    LIST_ORDERS,
    LIST_PRODUCTS,
    MIX,
    NO_ANSWER,
    PAY,
    PLACE_ORDER,
    REPLAYED,
    TURNED_AWAY,
    LoadPlan,
    RecordWriter,
    Request,
    Visit,
)

# One user: visits that begin at intended times, whatever became of those before, and requests that are made again when
# they are told to come back later.
#
# Invariants: the intended times of a user are fixed when it starts, `pace_s` apart; a visit never waits for another
# one, unless VISITS_MAX of the same user are under way; a request is repeated as it is, with its key.

RUN = uuid4().hex[:12]
CONNECTIONS_MAX = 512  # to each service
VISITS_MAX = 64  # of one user at once
REQUEST_TIMEOUT_S = 15.0
GOLDEN_SECTION = 0.6180339887498949
PAUSE_S = 0.5  # before a request without an answer is made again
PROBLEM_PREFIX = "urn:hourglass:problem:"
# Answers with which a shop does its work; to Locust they are no failures.
EXPECTED = frozenset({"402 payment-declined", "409 order-closed", "409 already-paid", "409 insufficient-stock"})
# These come with Retry-After, and mean a moment.
MOMENTARY = frozenset({"409 request-in-flight", "409 payment-in-progress", "404 unknown-order"})
UNWANTED = 500  # the one that a service gives for what it did not expect


class TurnedAwayError(Exception):
    """The shop has said "later" for as long as this buyer has patience."""


class UnexpectedAnswerError(Exception):
    """The shop has given an answer that this buyer does not know."""


@dataclass(slots=True)
class Answer:
    """`name` is the status with the kind of problem; `body` is what the JSON holds."""

    name: str
    status: int
    body: Mapping[str, Any]
    retry_after_s: float | None

    @property
    def is_good(self) -> bool:
        return self.status // 100 == 2


class Shopper(FastHttpUser):
    """A buyer. A subclass says what a visit is."""

    abstract = True
    plan: ClassVar[LoadPlan]
    records: ClassVar[RecordWriter]
    client_pool = HTTPClientPool(concurrency=CONNECTIONS_MAX, network_timeout=REQUEST_TIMEOUT_S)
    network_timeout = REQUEST_TIMEOUT_S
    max_redirects = 0
    max_retries = 0
    _numbers: ClassVar[count[int]] = count()

    def __init__(self, environment: Any) -> None:
        self.host = self.plan.orders_url
        super().__init__(environment)
        self._number = next(self._numbers)
        self.rng = Random(f"{self.plan.seed} {self._number}")  # noqa: S311 - a load to repeat, not a secret
        self._token = self.plan.tokens[self._number % len(self.plan.tokens)]
        self._keys = count()
        self._visits = Pool(VISITS_MAX)
        self._next_intended = 0.0

    def on_start(self) -> None:
        # So that the visits of all users are spread evenly, however many there are.
        self._next_intended = time.time() + self._number * GOLDEN_SECTION % 1.0 * self.plan.pace_s
        gevent.sleep(self.wait_time())

    def wait_time(self) -> float:
        """Until the next visit is intended."""
        return max(0.0, self._next_intended - time.time())

    @task
    def begin_visit(self) -> None:
        intended, self._next_intended = self._next_intended, self._next_intended + self.plan.pace_s
        self._visits.spawn(self._visit, intended)

    def on_stop(self) -> None:
        """Visits that have begun may end, for as long as the plan says."""
        self._visits.join(timeout=self.plan.finish_s)
        self._visits.kill()

    def visit(self, intended: float) -> None:
        """One visit, whose first request was intended for then. Raises TurnedAwayError, UnexpectedAnswerError."""
        raise NotImplementedError

    def _visit(self, intended: float) -> None:
        begun, outcome = time.time(), CUT_OFF
        try:
            self.visit(intended)
            outcome = DONE
        except TurnedAwayError:
            outcome = TURNED_AWAY
        except UnexpectedAnswerError:
            outcome = FAILED
        finally:
            self.records.visit(Visit(type(self).__name__, intended, begun, time.time(), outcome))

    def key(self) -> str:
        """A new idempotency key; another run on the same shop has others, whatever its seed."""
        return f"load-{RUN}-{self._number}-{next(self._keys)}"

    def think(self) -> float:
        """Time passes; when the next step is intended."""
        seconds = self.rng.uniform(*self.plan.think_s)
        gevent.sleep(seconds)
        return time.time()

    def ask(
        self,
        name: str,
        url: str,
        intended: float,
        body: Mapping[str, Any] | None = None,
        key: str | None = None,
    ) -> Answer:
        """The last word on a request that was intended for then; `name` begins with its method.

        Raises TurnedAwayError when it is told "later" too often, UnexpectedAnswerError for an answer that the shop
        should not give.
        """
        deadline = time.monotonic() + self.plan.patience_s
        for number in count(1):
            answer = self._ask_once(number, name, url, intended, body=body, key=key)
            if answer.is_good or answer.name in EXPECTED:
                return answer
            if answer.status == UNWANTED:
                self.records.wrong(f"{name} was answered {answer.name}: {answer.body}")
            may_help = answer.retry_after_s is not None or answer.status == 0
            pause_s = PAUSE_S if answer.retry_after_s is None else answer.retry_after_s
            if not may_help:
                raise UnexpectedAnswerError(answer.name)
            if number >= self.plan.tries or time.monotonic() + pause_s > deadline:
                raise TurnedAwayError(answer.name)
            gevent.sleep(pause_s)
        raise AssertionError("a count has no end")

    def _ask_once(
        self, number: int, name: str, url: str, intended: float, *, body: Mapping[str, Any] | None, key: str | None
    ) -> Answer:
        headers = {"Authorization": f"Bearer {self._token}"} | ({} if key is None else {"Idempotency-Key": key})
        method = name.partition(" ")[0]
        begun, begin = time.time(), time.perf_counter()
        content: Any = {} if body is None else {"json": body}
        with self.client.request(method, url, name=name, headers=headers, catch_response=True, **content) as response:
            seconds = time.perf_counter() - begin
            answer = _answer_of(response)
            if answer.is_good or answer.name in EXPECTED | MOMENTARY:
                response.success()
            else:
                response.failure(answer.name)
        told = "" if answer.retry_after_s is None else f"{answer.retry_after_s:g}"
        self.records.request(Request(name, intended, begun, seconds, answer.name, number, told))
        return answer


def _answer_of(response: Any) -> Answer:
    status = int(response.status_code or 0)
    if status == 0:
        return Answer(f"{NO_ANSWER}: {type(response.error).__name__}", 0, {}, None)
    body = response.json() if "json" in response.headers.get("Content-Type", "") else {}
    retry_after = response.headers.get("Retry-After")
    problem = str(body.get("type", "")).removeprefix(PROBLEM_PREFIX) if status >= 400 else ""
    replayed = REPLAYED if status < 400 and response.headers.get("Idempotency-Replayed") == "true" else ""
    name = f"{status} {problem or replayed}".strip()
    return Answer(name, status, body, None if retry_after is None else float(retry_after))


# The first request of a visit is intended for the visit's own time, a later one for the moment in which its buyer has
# thought enough.

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
