"""The kinds of problems that payments adds to those of servicekit.http.problem."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from payments.domain import errors
from servicekit.errors import ServiceError
from servicekit.http.problem import QUEUE_UNAVAILABLE, ProblemType

UNKNOWN_PAYMENT = ProblemType("unknown-payment", 404, "There is no such payment", ("payment_id",))
UNKNOWN_REFUND = ProblemType("unknown-refund", 404, "The payment has no such refund", ("refund_id",))
UNKNOWN_ORDER = ProblemType("unknown-order", 404, "No such order is known yet", ("order_id",), retry_after_s=1)
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
NOT_CAPTURED_YET = ProblemType(
    "not-captured-yet", 409, "The payment is still being captured", ("payment_id",), retry_after_s=1
)
NOT_REFUNDABLE = ProblemType("not-refundable", 409, "No money of this payment can go back")
REFUND_TOO_LARGE = ProblemType(
    "refund-too-large", 422, "More than is left of the payment", ("payment_id", "amount_minor", "refundable_minor")
)
REFUND_FAILED = ProblemType("refund-failed", 409, "The gateway has rejected the refund; it is kept, to be tried again")
PAYMENT_CHANGED = ProblemType("payment-changed", 503, "Other requests kept changing the payment", retry_after_s=1)
INVALID_SIGNATURE = ProblemType("invalid-signature", 401, "The signature of the webhook is not valid")
NOT_A_WEBHOOK = ProblemType("not-a-webhook", 422, "The body is not one of the gateway's events")
GATEWAY_UNAVAILABLE = ProblemType("gateway-unavailable", 503, "The payment gateway does not answer", retry_after_s=1)

PROBLEM_OF_ERROR: Mapping[type[ServiceError], ProblemType] = MappingProxyType(
    {
        errors.UnknownPaymentError: UNKNOWN_PAYMENT,
        errors.UnknownRefundError: UNKNOWN_REFUND,
        errors.UnknownOrderError: UNKNOWN_ORDER,
        errors.WrongAmountError: WRONG_AMOUNT,
        errors.WrongCurrencyError: WRONG_CURRENCY,
        errors.OrderClosedError: ORDER_CLOSED,
        errors.AlreadyPaidError: ALREADY_PAID,
        errors.PaymentInProgressError: PAYMENT_IN_PROGRESS,
        errors.NotCapturedYetError: NOT_CAPTURED_YET,
        errors.IllegalTransitionError: NOT_REFUNDABLE,
        errors.RefundTooLargeError: REFUND_TOO_LARGE,
        errors.StatusChangedError: PAYMENT_CHANGED,
        errors.GatewayUnavailableError: GATEWAY_UNAVAILABLE,
        errors.QueueUnavailableError: QUEUE_UNAVAILABLE,
    }
)
