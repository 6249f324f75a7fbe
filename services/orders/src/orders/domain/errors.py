"""The errors of orders, split by what the caller should do. The tree goes on from servicekit.errors.

ServiceError
├── RejectedError                the request cannot be carried out as it stands; repeating it changes nothing
│   ├── UnknownProductError
│   ├── UnknownOrderError
│   ├── ProductExistsError
│   ├── ProductChangedError
│   ├── UnitsInOrdersError
│   ├── SaleEndedError
│   ├── PriceChangedError
│   ├── InsufficientStockError
│   ├── MixedCurrenciesError
│   ├── IllegalTransitionError
│   ├── VersionMismatchError
│   ├── OrderNotPayableError
│   └── RefundRequestedError
└── TryAgainError                nothing was changed; the same request may succeed a moment later
    ├── StatusChangedError
    ├── OrderHeldError
    └── PaymentNotHeardOfError
"""

from __future__ import annotations

from servicekit.errors import RejectedError, TryAgainError


class UnknownProductError(RejectedError):
    """There is no product with this id."""

    def __init__(self, product_id: str) -> None:
        super().__init__(f"there is no product {product_id!r}")
        self.product_id = product_id


class UnknownOrderError(RejectedError):
    """There is no order with this id that the caller may see or change."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"there is no order {order_id!r}")
        self.order_id = order_id


class ProductExistsError(RejectedError):
    """A product with this id exists already."""

    def __init__(self, product_id: str) -> None:
        super().__init__(f"the product {product_id!r} exists already")
        self.product_id = product_id


class ProductChangedError(RejectedError):
    """The product is not in the version that the seller has seen."""

    def __init__(self, product_id: str, version: int) -> None:
        super().__init__(f"the product {product_id!r} was changed and is in version {version}; read it again")
        self.product_id = product_id
        self.version = version


class UnitsInOrdersError(RejectedError):
    """A product's total would be less than the units that its orders have."""

    def __init__(self, product_id: str, total: int, in_orders: int) -> None:
        super().__init__(
            f"the total of {product_id!r} cannot be {total}: orders have {in_orders} units, reserved or sold"
        )
        self.product_id = product_id
        self.in_orders = in_orders


class SaleEndedError(RejectedError):
    """The seller has taken the product off sale."""

    def __init__(self, product_id: str) -> None:
        super().__init__(f"the product {product_id!r} is no longer on sale")
        self.product_id = product_id


class PriceChangedError(RejectedError):
    """The order would cost something else than its buyer has seen."""

    def __init__(self) -> None:
        super().__init__("the price of an ordered product has changed; look at the prices and order again")


class InsufficientStockError(RejectedError):
    """Fewer units are on sale than the order asks for."""

    def __init__(self, product_id: str, quantity: int, available: int) -> None:
        super().__init__(f"{quantity} of {product_id!r} were ordered, and {available} are available")
        self.product_id = product_id
        self.quantity = quantity
        self.available = available


class MixedCurrenciesError(RejectedError):
    """The products of one order are priced in different currencies."""

    def __init__(self, currencies: list[str]) -> None:
        super().__init__(f"one order has one currency; its products are priced in {', '.join(currencies)}")
        self.currencies = currencies


class IllegalTransitionError(RejectedError):
    """The order's status does not allow the change."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(f"an order that is {status} cannot be {reason}")
        self.order_status = status
        self.reason = reason


class VersionMismatchError(RejectedError):
    """The order is not in the version that the caller has seen; reading it again shows what has changed."""

    def __init__(self, order_id: str, version: int) -> None:
        super().__init__(f"the order {order_id!r} is no longer in version {version}; read it again before changing it")
        self.order_id = order_id
        self.version = version


class RefundRequestedError(RejectedError):
    """A refund of this payment was requested before; its only effect is that the second request is rolled back."""

    def __init__(self, payment_id: str) -> None:
        super().__init__(f"a refund of the payment {payment_id!r} was requested before")


class StatusChangedError(TryAgainError):
    """The order's status changed between reading and writing; another change won."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"the status of order {order_id!r} has just been changed by another request")
        self.order_id = order_id


class OrderNotPayableError(RejectedError):
    """The order is over, paid, or past its time: a payment must not begin.

    `hold_ended_ms_ago` is of the very payment that asks; None if it has never held the order.
    """

    def __init__(self, order_id: str, status: str, hold_ended_ms_ago: int | None) -> None:
        super().__init__(f"the order {order_id!r} is {status}, and cannot be paid any more; nothing may be captured")
        self.order_id = order_id
        self.order_status = status
        self.hold_ended_ms_ago = hold_ended_ms_ago


class OrderHeldError(TryAgainError):
    """A payment of the order is in progress; what would end the order, or pay it otherwise, has to wait for it."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"a payment of the order {order_id!r} is in progress; try again when it is decided")
        self.order_id = order_id


class PaymentNotHeardOfError(TryAgainError):
    """The refund of a payment has overtaken the payment, which is still to come."""

    def __init__(self, order_id: str, payment_id: str) -> None:
        super().__init__(f"order {order_id!r} has not heard of the payment {payment_id!r} yet, which was refunded")
