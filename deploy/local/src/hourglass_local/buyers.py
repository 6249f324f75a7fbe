"""Who orders what: a plan that depends on its seed only, and the buyers who carry it out side by side."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

from hourglass_local.shop import Order, Product, Shop

TRAINS = ("G1", "G7", "G101", "D305", "D717", "Z281", "K1511", "T109")
CLASSES = {"first": 93_300, "second": 55_300}  # price of a seat in fen
CURRENCY = "CNY"
LINES_MAX = 3
QUANTITY_MAX = 4
SPARE_UNITS = 10


@dataclass(frozen=True, slots=True)
class PlannedOrder:
    """One order: who, what, and the idempotency key of all its tries."""

    buyer_id: str
    items: Mapping[str, int]
    key: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Products with enough stock for all orders."""

    products: tuple[Product, ...]
    orders: tuple[PlannedOrder, ...]


def make_plan(orders: int, buyers: int, seed: int) -> Plan:
    """The same plan for the same arguments."""
    rng = Random(seed)  # noqa: S311 - a plan to repeat, not a secret
    seats = {f"{train}-{name}": price for train in TRAINS for name, price in CLASSES.items()}
    planned = tuple(
        _planned(rng, number, f"buyer-{number % buyers + 1}", sorted(seats), seed) for number in range(orders)
    )
    wanted = Counter[str]()
    for order in planned:
        wanted.update(order.items)
    products = tuple(
        Product(seat, f"Seat, {seat.replace('-', ', ')} class", price, CURRENCY, wanted[seat] + SPARE_UNITS)
        for seat, price in seats.items()
    )
    return Plan(products, planned)


async def place_all(shop: Shop, orders: Iterable[PlannedOrder], buyers: int, placed: Callable[[Order], None]) -> None:
    """Let `buyers` buyers place the orders at the same time; `placed` hears of each. Raises ShopError."""
    waiting = iter(orders)
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(buyers):
                tasks.create_task(_buy(shop, waiting, placed))
    except ExceptionGroup as group:
        raise group.exceptions[0] from group  # the first one who failed; the others were told to stop


async def _buy(shop: Shop, waiting: Iterator[PlannedOrder], placed: Callable[[Order], None]) -> None:
    for planned in waiting:
        placed(await shop.place_order(planned.buyer_id, planned.items, planned.key))


def _planned(rng: Random, number: int, buyer_id: str, seats: list[str], seed: int) -> PlannedOrder:
    chosen = rng.sample(seats, rng.randint(1, LINES_MAX))
    return PlannedOrder(buyer_id, {seat: rng.randint(1, QUANTITY_MAX) for seat in chosen}, f"demo-{seed}-{number}")
