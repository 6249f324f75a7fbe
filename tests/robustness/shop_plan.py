"""One round of G10: what is bought and how, and the faults meanwhile; all of it from a seed.

Invariants: the same seed makes the same plan; every kind of buyer and of ending is in every plan of a whole round, and
every process is killed and paused in it.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hourglass_local.plan import CURRENCY, SPARE_UNITS, Then
from hourglass_local.shop import Product
from osenv import SeededRng

PAYMENT_WINDOW_S = 8
START_S = 2.0  # what the start of a killed process takes, more or less
ORDERS, PAYMENTS, GATEWAY, BROKER, POSTGRESQL = "orders", "payments", "gateway", "broker", "postgresql"
SECOND_ORDERS, SECOND_PAYMENTS, REPLICA = "orders-2", "payments-2", "broker-replica"
SEATS = {"G1-first": 93_300, "G1-second": 55_300, "G7-first": 93_300, "D305-second": 41_000, "K1511-hard": 15_800}
LAST_SEATS = "G1-last"  # fewer than are wanted
LAST_SEATS_SHARE = 20  # one order of so many wants one
LAST_SEATS_UNITS = 3
PAUSE_S = (0.3, 3.0)
DOWN_S = (0.0, 1.0)
BETWEEN_S = (0.2, 1.2)
KILLS_OF_TWO = 2
LONG_S = (24.0, 27.0)  # more than every time-out and every number of tries of a round: LONGEST_S of shop_rounds.py
BEFORE_LONG_S = (3.0, 5.0)
BEFORE_LONG_ORDERS = 25
LONG_OUTAGES = 2  # of a round


class Way(enum.Enum):
    """What a buyer does with an order."""

    PAYS = "pays soon"
    DOUBLE_CLICKS = "places and pays twice at once, each with one key"
    TWO_TABS = "pays twice at once, with two keys"
    AT_EXPIRY = "pays around the expiry"
    NEVER = "never pays"
    CANCELS = "cancels soon"
    CANCELS_WHILE_PAYING = "pays and cancels at once"


class Deed(enum.Enum):
    """What is done to a process."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"


Outage = tuple[Deed, tuple[str, ...]]  # a fault and its victims


@dataclass(frozen=True, slots=True)
class Blow:
    """A fault: each of `victims` is killed, and started `for_s` later, or paused for so long.

    `after_s` is the time since all were back from the blow before.
    """

    after_s: float
    deed: Deed
    victims: tuple[str, ...]
    for_s: float

    @property
    def is_long(self) -> bool:
        return self.for_s >= LONG_S[0]

    @property
    def lasts_s(self) -> float:
        """Until all are back, more or less."""
        return self.after_s + self.for_s + (START_S if self.deed is Deed.KILL else 0.0)


@dataclass(frozen=True, slots=True)
class Purchase:
    """One order. It is placed `at_s` seconds after the blow of this index began, and its buyer acts on it so many
    seconds later, or, for AT_EXPIRY, after its expiry.
    """

    number: int
    blow: int
    at_s: float
    items: Mapping[str, int]
    way: Way
    act_after_s: float
    then: Then

    @property
    def buyer_id(self) -> str:
        return f"buyer-{self.number}"

    def key(self, name: str) -> str:
        """An idempotency key; another buyer may use the same."""
        return f"{name}-{self.number % 7}"


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """A whole round."""

    products: tuple[Product, ...]
    purchases: tuple[Purchase, ...]
    blows: tuple[Blow, ...]
    gateway_seed: int


def make_plan(
    seed: int,
    orders: int,
    victims: Sequence[str],
    outages: Sequence[Outage] = (),
    *,
    long_outages: int = LONG_OUTAGES,
) -> RoundPlan:
    """The plan of a seed; each victim is killed and paused once at least, and orders are placed meanwhile; so many
    services, or all that there are, are away for long, one after the other.

    With `outages` these happen, one after the other and each for long, and nothing else.
    """
    rng = SeededRng(seed)
    blows = tuple(_long_blow(rng, outage) for outage in outages) or _blows(rng, victims, long_outages)
    return plan_around(blows, seed, orders, rng)


def plan_around(blows: Sequence[Blow], seed: int, orders: int, rng: SeededRng) -> RoundPlan:
    """The orders that are placed while these happen."""
    ways = _shuffled(rng, Way, orders)
    endings = itertools.cycle(_shuffled(rng, Then, len(Then)))
    turns = _turns(blows, orders)
    in_turn = Counter(turns)
    purchases = tuple(
        Purchase(
            number=number,
            blow=turns[number],
            at_s=rng.uniform(0.0, _trade_s(blows[turns[number]], number, in_turn[turns[number]])),
            items=_items(rng, number),
            way=way,
            act_after_s=rng.uniform(-0.4, 0.4) if way is Way.AT_EXPIRY else rng.uniform(0.0, 1.5),
            then=next(endings),
        )
        for number, way in enumerate(ways)
    )
    return RoundPlan(_products(purchases), purchases, tuple(blows), seed)


def _turns(blows: Sequence[Blow], orders: int) -> list[int]:
    """The blow of each order, by its index: a blow has orders in proportion to the time that it takes."""
    ends_s = list(itertools.accumulate(blow.lasts_s for blow in blows))
    return [bisect_right(ends_s, ends_s[-1] * number / orders) for number in range(orders)]


def _trade_s(blow: Blow, number: int, orders: int) -> float:
    """How long orders are placed for: every second one of a long outage before it, so that it finds them half done, or
    every third, fourth, ... of many, so that they do not come faster than a busy machine sells.
    """
    return blow.after_s if blow.is_long and number % max(2, orders // BEFORE_LONG_ORDERS) == 1 else blow.lasts_s


def _items(rng: SeededRng, number: int) -> Mapping[str, int]:
    if number % LAST_SEATS_SHARE == 0:
        return {LAST_SEATS: 1}
    return {seat: rng.randrange(1, 4) for seat in rng.sample(sorted(SEATS), rng.randrange(1, 4))}


def _products(purchases: Sequence[Purchase]) -> tuple[Product, ...]:
    wanted = Counter[str]()
    for purchase in purchases:
        wanted.update(purchase.items)
    seats = [Product(seat, seat, price, CURRENCY, wanted[seat] + SPARE_UNITS) for seat, price in SEATS.items()]
    return (*seats, Product(LAST_SEATS, LAST_SEATS, SEATS["G1-first"], CURRENCY, LAST_SEATS_UNITS))


def _blows(rng: SeededRng, victims: Sequence[str], long_outages: int) -> tuple[Blow, ...]:
    deck: list[Outage] = [(deed, (victim,)) for deed in Deed for victim in victims]
    deck += [(Deed.KILL, tuple(rng.sample(list(victims), 2))) for _ in range(KILLS_OF_TWO)]
    blows = [
        Blow(rng.uniform(*BETWEEN_S), deed, chosen, rng.uniform(*(PAUSE_S if deed is Deed.PAUSE else DOWN_S)))
        for deed, chosen in deck
    ]
    services = sorted({name.partition("-")[0] for name in victims})
    for service in rng.sample(services, min(long_outages, len(services))):
        instances = tuple(name for name in victims if name.partition("-")[0] == service)
        blows.append(_long_blow(rng, (rng.choice(list(Deed)), instances)))
    rng.shuffle(blows)
    return tuple(blows)


def _long_blow(rng: SeededRng, outage: Outage) -> Blow:
    return Blow(rng.uniform(*BEFORE_LONG_S), *outage, rng.uniform(*LONG_S))


def _shuffled(rng: SeededRng, kinds: type[enum.Enum], count: int) -> list:  # type: ignore[type-arg]
    deck = [kind for kind, _ in zip(itertools.cycle(kinds), range(count), strict=False)]
    rng.shuffle(deck)
    return deck
