"""The kinds of problems that payments adds to those of servicekit.api.problem."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from payments.domain import errors
from servicekit.api.problem import QUEUE_UNAVAILABLE, ProblemType
from servicekit.errors import ServiceError

UNKNOWN_PAYMENT = ProblemType("unknown-payment", 404, "There is no such payment", ("payment_id",))
UNKNOWN_ORDER = ProblemType("unknown-order", 404, "No such order is known yet", ("order_id",), retry_after_s=1)
ANOTHER_BUYERS_ORDER = ProblemType("another-buyers-order", 403, "The order belongs to another buyer", ("order_id",))
WRONG_AMOUNT = ProblemType("wrong-amount", 422, "An order is paid whole", ("order_id", "amount_minor", "total_minor"))
WRONG_CURRENCY = ProblemType(
    "wrong-currency", 422, "An order is paid in its own currency", ("order_id", "currency", "order_currency")
)
ORDER_CLOSED = ProblemType("order-closed", 409, "The order can no longer be paid", ("order_id",))
ALREADY_PAID = ProblemType("already-paid", 409, "The order is paid", ("order_id",))
PAYMENT_IN_PROGRESS = ProblemType(
    "payment-in-progress", 409, "Another payment of the order is in progress", ("order_id",), retry_after_s=1
)
PAYMENT_DECLINED = ProblemType("payment-declined", 402, "The gateway declined the payment")
GATEWAY_UNAVAILABLE = ProblemType("gateway-unavailable", 503, "The payment gateway does not answer", retry_after_s=1)

PROBLEM_OF_ERROR: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {
        errors.UnknownPaymentError: UNKNOWN_PAYMENT,
        errors.UnknownOrderError: UNKNOWN_ORDER,
        errors.AnotherBuyersOrderError: ANOTHER_BUYERS_ORDER,
        errors.WrongAmountError: WRONG_AMOUNT,
        errors.WrongCurrencyError: WRONG_CURRENCY,
        errors.OrderClosedError: ORDER_CLOSED,
        errors.AlreadyPaidError: ALREADY_PAID,
        errors.PaymentInProgressError: PAYMENT_IN_PROGRESS,
        errors.GatewayUnavailableError: GATEWAY_UNAVAILABLE,
        errors.QueueUnavailableError: QUEUE_UNAVAILABLE,
    }
)
