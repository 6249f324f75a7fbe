"""The ledger: double entry, append-only. What moves is booked twice, so that every mistake of a sum is seen.

    capture   gateway  +amount    buyer-funds  -amount     the gateway holds the money, and it is the buyers'
    refund    gateway  -amount    buyer-funds  +amount

Invariants: the entries of a posting sum to zero in their one currency, and so does the whole ledger; a payment has one
capture posting at most and a refund one refund posting at most, because a posting's id follows from them and is unique.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from payments.domain.payment import Payment
from payments.domain.refund import Refund


class Account(enum.StrEnum):
    """Where money is."""

    GATEWAY = "gateway"  # at the gateway, for us
    BUYER_FUNDS = "buyer-funds"  # what buyers have paid and not got back


@dataclass(frozen=True, slots=True)
class Entry:
    """One side of a posting; debits are positive and credits negative, in minor units."""

    account: Account
    amount_minor: int


@dataclass(frozen=True, slots=True)
class Posting:
    """Money that moved, once. `refund_id` is None for a capture. Raises ValueError unless the entries sum to zero."""

    posting_id: str
    payment_id: str
    refund_id: str | None
    currency: str
    at_ms: int
    entries: tuple[Entry, ...]

    def __post_init__(self) -> None:
        if len(self.entries) < 2 or sum(entry.amount_minor for entry in self.entries) != 0:
            raise ValueError(f"the entries of posting {self.posting_id!r} do not sum to zero")


def capture_posting(payment: Payment) -> Posting:
    """The one posting of a captured payment's money. Raises ValueError for a payment that is not captured."""
    if payment.captured_at_ms is None:
        raise ValueError(f"payment {payment.payment_id!r} is {payment.status}; there is nothing to post")
    entries = _moved(payment.amount_minor)
    posting_id = f"capture/{payment.payment_id}"
    return Posting(posting_id, payment.payment_id, None, payment.currency, payment.captured_at_ms, entries)


def refund_posting(refund: Refund) -> Posting:
    """The one posting of a refund's money. Raises ValueError for a refund that is not refunded."""
    if refund.refunded_at_ms is None:
        raise ValueError(f"refund {refund.refund_id!r} is {refund.status}; there is nothing to post")
    entries = _moved(-refund.amount_minor)
    posting_id = f"refund/{refund.refund_id}"
    return Posting(posting_id, refund.payment_id, refund.refund_id, refund.currency, refund.refunded_at_ms, entries)


def _moved(amount_minor: int) -> tuple[Entry, ...]:
    return Entry(Account.GATEWAY, amount_minor), Entry(Account.BUYER_FUNDS, -amount_minor)
