"""Placing an order: key, stock, order, history and message in one unit of work.

Invariants: a key makes at most one order; an order exists exactly if its units are reserved and its `created` message
is in the outbox. A refused request leaves no trace, so that its key may be used again once stock is back.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass

from orders.domain.errors import InsufficientStockError, KeyReusedError, RequestInFlightError
from orders.domain.order import Order, RequestedLine, place, price_lines
from orders.service import events
from orders.service.unit_of_work import KeyClaim, UnitOfWork, Units
from osenv import Clock, Rng


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """What a buyer wants; a product is named in one line at most."""

    buyer_id: str
    lines: tuple[RequestedLine, ...]

    def __post_init__(self) -> None:
        if len({line.product_id for line in self.lines}) < len(self.lines):
            raise ValueError("a product is named in more than one line")

    def fingerprint(self) -> str:
        """Equal for equal requests, whatever their JSON looked like."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Placed:
    """The order, and whether it is the answer to an earlier request with the same key."""

    order: Order
    replayed: bool


class PlaceOrder:
    """The use case behind POST /orders."""

    def __init__(self, units: Units, clock: Clock, rng: Rng, payment_window_ms: int) -> None:
        self._units = units
        self._clock = clock
        self._rng = rng
        self._payment_window_ms = payment_window_ms
        # In memory on purpose: a key "in flight" in the database would stay so after a crash. Between processes the
        # claim decides, which is part of the order's own transaction.
        self._in_flight: set[str] = set()

    async def __call__(self, request: OrderRequest, key: str) -> Placed:
        """Place the order, or answer with the one that this key made before.

        Raises KeyReusedError, RequestInFlightError, UnknownProductError, MixedCurrenciesError, InsufficientStockError,
        StorageUnavailableError.
        """
        if key in self._in_flight:
            raise RequestInFlightError(key)
        self._in_flight.add(key)
        try:
            async with self._units.writing() as unit:
                earlier = await unit.keys.find(key)
                if earlier is None:
                    placed = Placed(await self._place(unit, request, key), replayed=False)
                    await unit.commit()
                else:
                    placed = await _replay(unit, request, earlier)
        finally:
            self._in_flight.discard(key)
        return placed

    async def _place(self, unit: UnitOfWork, request: OrderRequest, key: str) -> Order:
        now_ms = self._clock.wall_ms()
        products = await unit.products.find([line.product_id for line in request.lines])
        lines = price_lines(request.lines, products)
        order_id = self._rng.randbytes(16).hex()
        currency = products[lines[0].product_id].currency
        order, first = place(
            order_id, request.buyer_id, lines, currency, now_ms=now_ms, payment_window_ms=self._payment_window_ms
        )
        # First of all writes: whoever comes second with this key must meet the claim before the stock.
        await unit.keys.claim(KeyClaim(key, request.fingerprint(), order_id), now_ms)
        # By ascending id, so that two orders over the same products cannot wait for each other's rows.
        for line in sorted(lines, key=lambda line: line.product_id):
            if not await unit.products.reserve(line.product_id, line.quantity):
                current = await unit.products.find([line.product_id])
                raise InsufficientStockError(line.product_id, line.quantity, current[line.product_id].available)
        await unit.orders.add(order, first)
        await unit.outbox.add(events.created(order), now_ms)
        return order


async def _replay(unit: UnitOfWork, request: OrderRequest, earlier: KeyClaim) -> Placed:
    if earlier.fingerprint != request.fingerprint():
        raise KeyReusedError(earlier.key)
    order = await unit.orders.get(earlier.order_id)
    return Placed(order.as_placed(), replayed=True)
