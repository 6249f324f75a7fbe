"""What can go wrong around the shop's pages, beside the errors of the domain. The tree goes on from servicekit.errors.

ServiceError
├── RefusedError                 the request cannot be carried out as it stands; repeating it changes nothing
│   ├── PaymentRefusedError
│   ├── UnknownPaymentError
│   └── UnknownDeadLetterError
└── TryAgainError                nothing was changed; the same request may succeed a moment later
    ├── PaymentsUnavailableError
    ├── TooManyStreamsError
    └── FeedClosedError
"""

from __future__ import annotations

from servicekit.errors import RefusedError, TryAgainError


class PaymentRefusedError(RefusedError):
    """Payments said no. `problem` is its kind of problem, such as "order-closed", and `status` the HTTP status."""

    def __init__(self, problem: str, status: int, detail: str) -> None:
        super().__init__(detail)
        self.problem = problem
        self.status = status


class UnknownPaymentError(RefusedError):
    """The order has no payment with this id."""

    def __init__(self, payment_id: str) -> None:
        super().__init__(f"the order has no payment {payment_id!r}")
        self.payment_id = payment_id


class UnknownDeadLetterError(RefusedError):
    """There is no such dead letter, or somebody has dealt with it already."""

    def __init__(self, group: str, letter_id: str) -> None:
        super().__init__(f"{group!r} has no open dead letter {letter_id!r}")
        self.group = group


class PaymentsUnavailableError(TryAgainError):
    """Payments gave no answer, or none that can be used."""


class TooManyStreamsError(TryAgainError):
    """No further stream of order events is opened now."""

    def __init__(self, streams_max: int) -> None:
        super().__init__(f"{streams_max} streams of order events are open already, and no more are allowed")


class FeedClosedError(TryAgainError):
    """The process is about to stop."""

    def __init__(self) -> None:
        super().__init__("this process is about to stop; ask again in a moment")
