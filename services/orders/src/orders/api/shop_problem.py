"""The kinds of problems around order events and the shop's pages; the errors are those of service/payment_desk.py."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from orders.service.payment_desk import (
    FeedClosedError,
    PaymentsUnavailableError,
    TooManyStreamsError,
    UnknownDeadLetterError,
    UnknownPaymentError,
)
from servicekit.errors import QueueUnreachableError, ServiceError
from servicekit.http.problem import ProblemType

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
