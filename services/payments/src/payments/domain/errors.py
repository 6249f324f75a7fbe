"""The errors of payments, below the errors that every service has (servicekit.errors).

ServiceError
├── RejectedError
│   ├── UnknownPaymentError
│   ├── UnknownRefundError
│   ├── UnknownOrderError           it may become known in a moment: its event is on the way
│   ├── WrongAmountError
│   ├── WrongCurrencyError
│   ├── OrderClosedError
│   ├── OrderNotPayableError        orders lets no payment of the order begin
│   ├── AlreadyPaidError
│   ├── IllegalTransitionError
│   ├── RefundMismatchError
│   ├── RefundTooLargeError
│   ├── InvalidSignatureError       the sender is not the gateway, or sent it long ago
│   ├── EventKnownError             the gateway's event was taken note of before
│   ├── PostedBeforeError           the ledger has this posting: what asked for it twice is a fault on this side
│   └── GatewayRejectedError        what was asked of the gateway makes no sense: a fault on this side
└── TryAgainError
    ├── PaymentInProgressError
    ├── NotCapturedYetError
    ├── StatusChangedError
    ├── GatewayUnavailableError     the outcome is unknown; asking again changes nothing
    ├── OrdersUnavailableError      the order is not held: nothing may be captured
    └── QueueUnavailableError
"""

from __future__ import annotations

from servicekit.errors import RejectedError, TryAgainError


class UnknownPaymentError(RejectedError):
    """There is no payment with this id, or it is another buyer's: the answer does not tell which."""

    def __init__(self, payment_id: str) -> None:
        super().__init__(f"there is no payment {payment_id!r}")
        self.payment_id = payment_id


class UnknownRefundError(RejectedError):
    """The payment has no refund with this id."""

    def __init__(self, refund_id: str) -> None:
        super().__init__(f"there is no refund {refund_id!r}")
        self.refund_id = refund_id


class UnknownOrderError(RejectedError):
    """No event has told of this order yet, or it is another buyer's: the answer does not tell which."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"no order {order_id!r} is known; if it was placed just now, try again in a moment")
        self.order_id = order_id


class WrongAmountError(RejectedError):
    """An order is paid whole: no more, no less."""

    def __init__(self, order_id: str, amount_minor: int, total_minor: int) -> None:
        super().__init__(f"order {order_id!r} costs {total_minor}, and {amount_minor} was offered")
        self.order_id = order_id
        self.amount_minor = amount_minor
        self.total_minor = total_minor


class WrongCurrencyError(RejectedError):
    """An order is paid in its own currency."""

    def __init__(self, order_id: str, currency: str, order_currency: str) -> None:
        super().__init__(f"order {order_id!r} is priced in {order_currency}, and {currency} was offered")
        self.order_id = order_id
        self.currency = currency
        self.order_currency = order_currency


class OrderClosedError(RejectedError):
    """The order is over; nothing was charged."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"order {order_id!r} is closed and can no longer be paid")
        self.order_id = order_id


class OrderNotPayableError(RejectedError):
    """Orders lets no payment of the order begin. `hold_ended_ms_ago` is None if this one has never held the order."""

    def __init__(self, order_id: str, hold_ended_ms_ago: int | None) -> None:
        super().__init__(f"order {order_id!r} is over, and is not held for a payment any more")
        self.order_id = order_id
        self.hold_ended_ms_ago = hold_ended_ms_ago


class AlreadyPaidError(RejectedError):
    """The order's money is here."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"order {order_id!r} is paid already")
        self.order_id = order_id


class IllegalTransitionError(RejectedError):
    """The status of the payment or refund does not allow the change."""

    def __init__(self, what: str, status: str, reason: str) -> None:
        super().__init__(f"a {what} that is {status} cannot be {reason}")
        self.status = status
        self.reason = reason


class RefundMismatchError(RejectedError):
    """A refund was asked for with another order, amount or currency than the payment's."""

    def __init__(self, payment_id: str) -> None:
        super().__init__(f"the refund that was asked for is not about the money of payment {payment_id!r}")
        self.payment_id = payment_id


class RefundTooLargeError(RejectedError):
    """More was asked back than is left of the payment."""

    def __init__(self, payment_id: str, amount_minor: int, refundable_minor: int) -> None:
        super().__init__(f"of payment {payment_id!r} {refundable_minor} can be given back, and not {amount_minor}")
        self.payment_id = payment_id
        self.amount_minor = amount_minor
        self.refundable_minor = refundable_minor


class InvalidSignatureError(RejectedError):
    """The signature of a webhook is missing, malformed, wrong or not of this moment."""


class EventKnownError(RejectedError):
    """Another delivery of this event was faster; the only effect is that what this one would write is rolled back."""

    def __init__(self, event_id: str) -> None:
        super().__init__(f"event {event_id!r} was taken note of before")
        self.event_id = event_id


class PostedBeforeError(RejectedError):
    """Money would be booked twice; whatever led here is rolled back."""

    def __init__(self, posting_id: str) -> None:
        super().__init__(f"the ledger has the posting {posting_id!r} already")
        self.posting_id = posting_id


class GatewayRejectedError(RejectedError):
    """The gateway knows the id, or does not, in a way that contradicts what it is asked."""


class PaymentInProgressError(TryAgainError):
    """The order has a payment that is not decided yet."""

    def __init__(self, order_id: str) -> None:
        super().__init__(f"another payment of order {order_id!r} is in progress")
        self.order_id = order_id


class NotCapturedYetError(TryAgainError):
    """A refund was asked for before this service has written down the capture."""

    def __init__(self, payment_id: str) -> None:
        super().__init__(f"payment {payment_id!r} is still being captured; its refund comes after that")
        self.payment_id = payment_id


class StatusChangedError(TryAgainError):
    """The status changed between reading and writing; another change won."""

    def __init__(self, what: str, its_id: str) -> None:
        super().__init__(f"{what} {its_id!r} has just been changed by another request")


class GatewayUnavailableError(TryAgainError):
    """The gateway gave no answer."""


class OrdersUnavailableError(TryAgainError):
    """Orders has not said that the order is held for the payment; nothing is captured without."""


class QueueUnavailableError(TryAgainError):
    """The queue is known to be away; no payment is begun that could not be told."""
