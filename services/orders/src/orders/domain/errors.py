"""What can go wrong in orders, split by what the caller should do.

OrdersError
├── RefusedError                 the request cannot be carried out as it stands; repeating it changes nothing
│   ├── UnknownProductError
│   ├── UnknownOrderError
│   ├── ProductExistsError
│   ├── InsufficientStockError
│   ├── MixedCurrenciesError
│   ├── IllegalTransitionError
│   ├── KeyReusedError
│   └── InvalidCursorError
└── TryAgainError                nothing was changed; the same request may succeed a moment later
    ├── RequestInFlightError
    ├── StatusChangedError
    ├── StorageUnavailableError
    └── PublishError
"""

from __future__ import annotations


class OrdersError(Exception):
    """Every error that orders raises on purpose; its text is a sentence for the person who made the request."""


class RefusedError(OrdersError):
    """The request cannot be carried out as it stands."""


class TryAgainError(OrdersError):
    """Nothing was changed; the same request may succeed a moment later."""


class UnknownProductError(RefusedError):
    """There is no product with this id."""

    def __init__(self, product_id: str) -> None:
        super().__init__(f"there is no product {product_id!r}")
        self.product_id = product_id


class UnknownOrderError(RefusedError):
    """There is no order with this id."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"there is no order {order_id!r}")
        self.order_id = order_id


class ProductExistsError(RefusedError):
    """A product with this id exists already."""

    def __init__(self, product_id: str) -> None:
        super().__init__(f"the product {product_id!r} exists already")
        self.product_id = product_id


class InsufficientStockError(RefusedError):
    """Fewer units are on sale than the order asks for."""

    def __init__(self, product_id: str, quantity: int, available: int) -> None:
        super().__init__(f"{quantity} of {product_id!r} were ordered, and {available} are available")
        self.product_id = product_id
        self.quantity = quantity
        self.available = available


class MixedCurrenciesError(RefusedError):
    """The products of one order are priced in different currencies."""

    def __init__(self, currencies: list[str]) -> None:
        super().__init__(f"one order has one currency; its products are priced in {', '.join(currencies)}")
        self.currencies = currencies


class IllegalTransitionError(RefusedError):
    """The order's status does not allow the change."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"an order that is {status} cannot be {reason}")
        self.status = status
        self.reason = reason


class KeyReusedError(RefusedError):
    """The idempotency key belongs to an earlier request with another payload."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the idempotency key {key!r} was used for another payload; a new request needs a new key")


class InvalidCursorError(RefusedError):
    """The cursor is not one that a list answered."""

    def __init__(self, cursor: str) -> None:
        super().__init__(f"{cursor!r} is not a cursor; use next_cursor of the page before, or none for the first page")


class RequestInFlightError(TryAgainError):
    """A request with this idempotency key is being carried out right now."""

    def __init__(self, key: str) -> None:
        super().__init__(f"a request with the idempotency key {key!r} is being carried out; repeat it for its answer")


class StatusChangedError(TryAgainError):
    """The order's status changed between reading and writing; somebody else won."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"the status of order {order_id!r} has just been changed by somebody else")
        self.order_id = order_id


class StorageUnavailableError(TryAgainError):
    """The database does not answer; whatever was begun is rolled back."""


class PublishError(TryAgainError):
    """The queue did not take the message, or did not say that it did."""
