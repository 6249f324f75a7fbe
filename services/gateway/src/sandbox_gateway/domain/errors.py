"""What can go wrong in the gateway, below the errors that every service has (servicekit.errors).

ServiceError
├── RefusedError
│   ├── UnknownChargeError
│   ├── UnknownRefundError
│   ├── OtherTermsError             the id was used for something else
│   └── NotRefundableError          the charge has not so much to give back
└── TryAgainError
    └── WrittenMeanwhileError       another request wrote the same at the same moment

DeliveryError                       a webhook was not answered with 2xx; it is sent again
"""

from __future__ import annotations

from servicekit.errors import RefusedError, TryAgainError


class UnknownChargeError(RefusedError):
    """There is no charge with this id."""

    def __init__(self, charge_id: str) -> None:
        super().__init__(f"there is no charge {charge_id!r}")
        self.charge_id = charge_id


class UnknownRefundError(RefusedError):
    """There is no refund with this id."""

    def __init__(self, refund_id: str) -> None:
        super().__init__(f"there is no refund {refund_id!r}")
        self.refund_id = refund_id


class OtherTermsError(RefusedError):
    """An id names one charge or one refund for ever."""

    def __init__(self, what: str, its_id: str) -> None:
        super().__init__(f"the {what} {its_id!r} was asked for before, with other terms; a new one needs a new id")


class NotRefundableError(RefusedError):
    """No charge gives back more than it took, nor another currency."""


class WrittenMeanwhileError(TryAgainError):
    """Another request wrote the same charge or refund at the same moment."""

    def __init__(self, what: str, its_id: str) -> None:
        super().__init__(f"the {what} {its_id!r} is being written by another request; repeat this one for its answer")


class DeliveryError(Exception):
    """The receiver of webhooks did not take one; the text says what it said."""
