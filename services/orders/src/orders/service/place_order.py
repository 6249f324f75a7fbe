"""Placing an order in one unit of work, told by a transactional message; and the basket of which it is made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import telemetry
from orders.domain.errors import InsufficientStockError, PriceChangedError, SaleEndedError
from orders.domain.order import Order, OrderLine, RequestedLine, StatusChange, place, price_lines
from orders.domain.product import Product
from orders.service import events
from orders.service.use_case import NOT_METERED, OrderMeter, UnitOfWork, Units, annotate_span, origin_of
from osenv import Clock, Rng
from servicekit.errors import RejectedError
from servicekit.sql.units import InFlightKeys, KeyClaim, TransactionalPublisher, fingerprint


@dataclass(frozen=True, slots=True)
class BasketLine:
    """One wish; `product` is None when there is no such product any more."""

    product_id: str
    quantity: int
    product: Product | None

    @property
    def total_minor(self) -> int:
        return 0 if self.product is None else self.quantity * self.product.price_minor

    @property
    def is_available(self) -> bool:
        """Whether an order of this line alone would be taken now."""
        return self.product is not None and self.product.is_on_sale and self.product.available >= self.quantity


@dataclass(frozen=True, slots=True)
class Basket:
    """All wishes; `currency` is None for an empty one, and for one that mixes currencies."""

    lines: tuple[BasketLine, ...]

    @property
    def currency(self) -> str | None:
        currencies = {line.product.currency for line in self.lines if line.product is not None}
        return currencies.pop() if len(currencies) == 1 else None

    @property
    def total_minor(self) -> int:
        return sum(line.total_minor for line in self.lines)

    @property
    def can_be_ordered(self) -> bool:
        return self.currency is not None and all(line.is_available for line in self.lines)


class Baskets:
    """The cart as a buyer sees it before ordering: today's names, prices and stock beside the wished quantities.

    Nothing is reserved here, and a price may change until the order is placed: PlaceOrder decides.
    """

    def __init__(self, units: Units) -> None:
        self._units = units

    async def price(self, wishes: Sequence[RequestedLine]) -> Basket:
        """The wishes at this moment's prices, in their own order."""
        products = await self.products([wish.product_id for wish in wishes])
        return Basket(
            tuple(BasketLine(wish.product_id, wish.quantity, products.get(wish.product_id)) for wish in wishes)
        )

    async def products(self, product_ids: Collection[str]) -> dict[str, Product]:
        """Those of the products that exist, by id."""
        if not product_ids:
            return {}
        async with self._units.snapshot() as unit:
            return await unit.products.find(product_ids)


@dataclass(frozen=True, slots=True)
class OrderRequest:
    """The caller's order: as a buyer, with each product in one line at most."""

    buyer_id: str
    lines: tuple[RequestedLine, ...]

    def __post_init__(self) -> None:
        if len({line.product_id for line in self.lines}) < len(self.lines):
            raise ValueError("a product is named in more than one line")


@dataclass(frozen=True, slots=True)
class Placed:
    """The order, and whether it is the answer to an earlier request with the same key."""

    order: Order
    replayed: bool


class PlaceOrder:
    """The use case behind POST /orders.

    Invariants: a buyer's key makes at most one order; an order exists exactly if its units are reserved, and exactly
    then its `created` message is delivered. A rejected request leaves no trace, so that its key may be used again once
    stock is back. Prices are read before the message is sent, because it names them; stock is decided inside the unit,
    and so is whether the product is still on sale at that price.
    """

    def __init__(
        self,
        units: Units,
        transactions: TransactionalPublisher[UnitOfWork],
        clock: Clock,
        rng: Rng,
        payment_window_ms: int,
        *,
        meter: OrderMeter = NOT_METERED,
    ) -> None:
        self._units = units
        self._transactions = transactions
        self._clock = clock
        self._rng = rng
        self._payment_window_ms = payment_window_ms
        self._meter = meter
        self._in_flight = InFlightKeys()

    async def __call__(self, request: OrderRequest, key: str, *, expected_total_minor: int | None = None) -> Placed:
        """Place the order, or answer with the one that the buyer's key made before, without a word to the queue.

        `expected_total_minor` is what the buyer has seen, a condition and no part of what is ordered. Raises
        KeyReusedError, RequestInFlightError, UnknownProductError, MixedCurrenciesError, SaleEndedError,
        InsufficientStockError, PriceChangedError, PublishError, TransactionGivenUpError, StorageUnavailableError.
        """
        with self._in_flight.holding(request.buyer_id, key):
            async with self._units.autocommit() as unit:
                product_ids = [line.product_id for line in request.lines]
                earlier, products = await unit.orders.before_placing(request.buyer_id, key, product_ids)
                if earlier is not None:
                    return await _replay(unit, request, earlier)
            order, first = self._price(request, products)
            if expected_total_minor not in {None, order.total_minor}:
                raise PriceChangedError
            claim = KeyClaim(request.buyer_id, key, fingerprint(request), order.order_id)

            async def write(unit: UnitOfWork) -> None:
                rejected = await unit.orders.place(order, first, claim)
                if rejected:
                    line = next(line for line in order.lines if line.product_id in rejected)
                    found = await unit.products.find([line.product_id])
                    raise _rejection(line, found[line.product_id])

            annotate_span(order)
            await self._transactions.publish(events.created(order), write)
            self._meter.changed(order, first)
        return Placed(order, replayed=False)

    def _price(self, request: OrderRequest, products: Mapping[str, Product]) -> tuple[Order, StatusChange]:
        lines = price_lines(request.lines, products)
        return place(
            self._rng.randbytes(16).hex(),
            request.buyer_id,
            lines,
            products[lines[0].product_id].currency,
            origin_of(request.buyer_id, self._clock),
            payment_window_ms=self._payment_window_ms,
            traceparent=telemetry.traceparent(),
        )


def _rejection(line: OrderLine, current: Product) -> RejectedError:
    if not current.is_on_sale:
        return SaleEndedError(line.product_id)
    if current.price_minor != line.unit_price_minor:
        return PriceChangedError()
    return InsufficientStockError(line.product_id, line.quantity, current.available)


async def _replay(unit: UnitOfWork, request: OrderRequest, earlier: KeyClaim) -> Placed:
    earlier.require_fingerprint(fingerprint(request))
    order = await unit.orders.get(earlier.result_id)
    return Placed(order.as_placed(), replayed=True)
