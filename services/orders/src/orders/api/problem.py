"""The kinds of problems that orders adds to those of servicekit.http.problem: of its domain, streams and pages."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orders.domain import errors
from orders.service.payments import (
    FeedClosedError,
    PaymentsUnavailableError,
    TooManyStreamsError,
    UnknownDeadLetterError,
    UnknownPaymentError,
)
from servicekit.errors import QueueUnreachableError, ServiceError
from servicekit.http.problem import PRECONDITION_FAILED, ProblemType

UNKNOWN_PRODUCT = ProblemType("unknown-product", 404, "There is no such product", ("product_id",))
UNKNOWN_ORDER = ProblemType("unknown-order", 404, "There is no such order", ("order_id",))
PRODUCT_EXISTS = ProblemType("product-exists", 409, "The product exists already", ("product_id",))
PRODUCT_CHANGED = ProblemType("product-changed", 409, "The product is in another version", ("product_id", "version"))
UNITS_IN_ORDERS = ProblemType("units-in-orders", 409, "Orders have more units than that", ("product_id", "in_orders"))
SALE_ENDED = ProblemType("sale-ended", 409, "The product is no longer on sale", ("product_id",))
PRICE_CHANGED = ProblemType("price-changed", 409, "The order would cost something else")
INSUFFICIENT_STOCK = ProblemType(
    "insufficient-stock", 409, "There are not enough units", ("product_id", "quantity", "available")
)
MIXED_CURRENCIES = ProblemType("mixed-currencies", 422, "An order has one currency", ("currencies",))
ILLEGAL_TRANSITION = ProblemType("illegal-transition", 409, "The order's status does not allow this", ("order_status",))
ORDER_NOT_PAYABLE = ProblemType(
    "order-not-payable",
    409,
    "No payment of the order may begin",
    ("order_id", "order_status", "hold_ended_ms_ago"),
)
ORDER_HELD = ProblemType("order-held", 409, "A payment of the order is in progress", ("order_id",), retry_after_s=5)
STATUS_CHANGED = ProblemType("status-changed", 409, "Another request changed the order", ("order_id",), retry_after_s=1)

PROBLEM_OF_ERROR: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {
        errors.UnknownProductError: UNKNOWN_PRODUCT,
        errors.UnknownOrderError: UNKNOWN_ORDER,
        errors.ProductExistsError: PRODUCT_EXISTS,
        errors.ProductChangedError: PRODUCT_CHANGED,
        errors.UnitsInOrdersError: UNITS_IN_ORDERS,
        errors.SaleEndedError: SALE_ENDED,
        errors.PriceChangedError: PRICE_CHANGED,
        errors.InsufficientStockError: INSUFFICIENT_STOCK,
        errors.MixedCurrenciesError: MIXED_CURRENCIES,
        errors.IllegalTransitionError: ILLEGAL_TRANSITION,
        errors.OrderNotPayableError: ORDER_NOT_PAYABLE,
        errors.OrderHeldError: ORDER_HELD,
        errors.StatusChangedError: STATUS_CHANGED,
        errors.VersionMismatchError: PRECONDITION_FAILED,
    }
)


TOO_MANY_STREAMS = ProblemType("too-many-streams", 503, "Too many streams are open", retry_after_s=5)
STOPPING = ProblemType("stopping", 503, "The service is about to stop", retry_after_s=1)
PAYMENTS_UNAVAILABLE = ProblemType("payments-unavailable", 503, "Payments do not answer", retry_after_s=1)
QUEUE_UNREACHABLE = ProblemType("queue-unreachable", 503, "The message queue does not answer", retry_after_s=1)
UNKNOWN_PAYMENT = ProblemType("unknown-payment", 404, "The order has no such payment", ("payment_id",))
UNKNOWN_DEAD_LETTER = ProblemType("unknown-dead-letter", 404, "There is no such open dead letter", ("group",))

STREAM_PROBLEM_OF_ERROR: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {TooManyStreamsError: TOO_MANY_STREAMS, FeedClosedError: STOPPING}
)

PAGE_PROBLEM_OF_ERROR: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {
        **STREAM_PROBLEM_OF_ERROR,
        PaymentsUnavailableError: PAYMENTS_UNAVAILABLE,
        QueueUnreachableError: QUEUE_UNREACHABLE,
        UnknownPaymentError: UNKNOWN_PAYMENT,
        UnknownDeadLetterError: UNKNOWN_DEAD_LETTER,
    }
)
