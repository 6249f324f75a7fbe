"""The states of a payment and the changes between them.

Invariants: a status changes only by a row of TRANSITIONS; DECLINED and REFUNDED have no row and are final.
"""

from __future__ import annotations

import enum
from types import MappingProxyType

from payments.domain.errors import IllegalTransitionError


class PaymentStatus(enum.StrEnum):
    """Where a payment stands. CREATED is the intent: the gateway may have moved the money already, or never will."""

    CREATED = "CREATED"
    CAPTURED = "CAPTURED"
    DECLINED = "DECLINED"
    PARTIALLY_REFUNDED = "PARTIALLY_REFUNDED"
    REFUNDED = "REFUNDED"


# The money was taken, whatever became of it since.
TOOK_MONEY = frozenset({PaymentStatus.CAPTURED, PaymentStatus.PARTIALLY_REFUNDED, PaymentStatus.REFUNDED})


class ChangeReason(enum.StrEnum):
    """Why a payment changed its status; kept in its history."""

    REQUESTED = "requested"
    CAPTURED = "captured"
    DECLINED = "declined"
    PARTIALLY_REFUNDED = "partially refunded"  # something is left to give back
    REFUNDED = "refunded"  # nothing is left


TRANSITIONS = MappingProxyType(
    {
        (PaymentStatus.CREATED, ChangeReason.CAPTURED): PaymentStatus.CAPTURED,
        (PaymentStatus.CREATED, ChangeReason.DECLINED): PaymentStatus.DECLINED,
        (PaymentStatus.CAPTURED, ChangeReason.PARTIALLY_REFUNDED): PaymentStatus.PARTIALLY_REFUNDED,
        (PaymentStatus.CAPTURED, ChangeReason.REFUNDED): PaymentStatus.REFUNDED,
        (PaymentStatus.PARTIALLY_REFUNDED, ChangeReason.PARTIALLY_REFUNDED): PaymentStatus.PARTIALLY_REFUNDED,
        (PaymentStatus.PARTIALLY_REFUNDED, ChangeReason.REFUNDED): PaymentStatus.REFUNDED,
    }
)


def next_status(status: PaymentStatus, reason: ChangeReason) -> PaymentStatus:
    """The status after `reason` happened to a payment in `status`. Raises IllegalTransitionError if it cannot."""
    try:
        return TRANSITIONS[status, reason]
    except KeyError:
        raise IllegalTransitionError("payment", status, reason) from None
