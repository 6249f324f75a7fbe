"""Orders, payments, and what follows them: a plan that depends on its seed only."""

from __future__ import annotations

import enum
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType

from hourglass_local.shop import Product
from orders.service.sample_catalogue import SAMPLE_CATALOGUE

CURRENCY = "CNY"
LINES_MAX = 3
QUANTITY_MAX = 4
SPARE_UNITS = 10


class Pays(enum.Enum):
    """When a buyer pays an order."""

    NEVER = "never"
    SOON = "soon after placing it"
    TWICE = "soon after placing it, and once more with the same key"
    AT_EXPIRY = "in the moments around its expiry"
    TOO_LATE = "clearly after its expiry"
    CANCELS = "never: cancelled soon after it is placed"


class Then(enum.Enum):
    """What becomes of an order that was paid in time."""

    WAITS = "it is not shipped today"
    SHIPPED = "the seller ships it, and it completes by itself"
    RECEIVED = "the seller ships it, and its buyer confirms the receipt"
    CANCELLED = "the seller cancels it, and the money goes back"
    PARTLY_REFUNDED = "the seller ships it, and the operator gives a part of the money back"


# Any six orders that begin with the first have every kind of buyer; of twenty about half end paid.
HABITS = (
    *(Pays.AT_EXPIRY, Pays.TWICE, Pays.NEVER, Pays.SOON, Pays.TOO_LATE, Pays.CANCELS),
    *(Pays.SOON, Pays.NEVER, Pays.SOON, Pays.AT_EXPIRY),
    *(Pays.SOON, Pays.NEVER, Pays.SOON, Pays.TWICE, Pays.NEVER),
    *(Pays.SOON, Pays.AT_EXPIRY, Pays.SOON, Pays.NEVER, Pays.AT_EXPIRY),
)
NOBODY_PAYS = (Pays.NEVER,)
PAID_SOON = frozenset({Pays.SOON, Pays.TWICE})

RACE_MS = 300
# From when to when the buyer pays, or cancels: milliseconds after the expiry for AT_EXPIRY and TOO_LATE, after the
# placing for the others.
PAY_FROM_TO_MS: Mapping[Pays, tuple[int, int]] = MappingProxyType(
    {
        Pays.NEVER: (0, 0),
        Pays.SOON: (100, 1_000),
        Pays.TWICE: (100, 1_000),
        Pays.AT_EXPIRY: (-RACE_MS, RACE_MS),
        Pays.TOO_LATE: (1_000, 1_500),
        Pays.CANCELS: (100, 1_000),
    }
)
# An order closes some milliseconds after its expiry, more of them when many expire at once, and payments hears of it a
# little later: a payment in between is refunded. So every second race is aimed behind the expiry.
BEHIND_THE_EXPIRY_MS = (0, RACE_MS)


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """One order: its buyer, its items, the idempotency key of all tries to place it, when it is paid (see
    PAY_FROM_TO_MS), and what follows if it is paid soon.
    """

    buyer_id: str
    items: Mapping[str, int]
    key: str
    pays: Pays
    pay_after_ms: int
    then: Then = Then.WAITS

    def payment_key(self, number: int) -> str:
        """The idempotency key of all tries to make the payment of this number; the next one follows when the gateway
        declines.
        """
        return f"{self.key}-payment-{number}"


@dataclass(frozen=True, slots=True)
class Plan:
    """Products of the sample catalogue, with enough stock for all orders."""

    products: tuple[Product, ...]
    orders: tuple[PlannedOrder, ...]


def make_plan(orders: int, buyers: int, seed: int, habits: Sequence[Pays] = HABITS) -> Plan:
    """The same plan for the same arguments; the buyers' habits come in turn."""
    rng = Random(seed)  # noqa: S311 - a plan to repeat, not a secret
    endings = itertools.cycle(Then)
    planned = tuple(
        PlannedOrder(
            buyer_id=f"buyer-{number % buyers + 1}",
            items=_some_products(rng),
            key=f"demo-{seed}-{number}",
            pays=habits[number % len(habits)],
            pay_after_ms=_pay_after_ms(rng, number, habits[number % len(habits)]),
            then=next(endings) if habits[number % len(habits)] in PAID_SOON else Then.WAITS,
        )
        for number in range(orders)
    )
    wanted = Counter[str]()
    for order in planned:
        wanted.update(order.items)
    products = tuple(
        Product(
            sample.product_id, sample.name, sample.price_minor, sample.currency, wanted[sample.product_id] + SPARE_UNITS
        )
        for sample in SAMPLE_CATALOGUE.values()
    )
    return Plan(products, planned)


def _some_products(rng: Random) -> Mapping[str, int]:
    chosen = rng.sample(tuple(SAMPLE_CATALOGUE), rng.randint(1, LINES_MAX))
    return {product_id: rng.randint(1, QUANTITY_MAX) for product_id in chosen}


def _pay_after_ms(rng: Random, number: int, pays: Pays) -> int:
    if pays is Pays.AT_EXPIRY and number % 2 == 0:
        return rng.randint(*BEHIND_THE_EXPIRY_MS)
    return rng.randint(*PAY_FROM_TO_MS[pays])
