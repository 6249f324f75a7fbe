"""The gateway's own things: charges, refunds, webhooks, failures, and errors, below those of servicekit.errors.

ServiceError
├── RejectedError
│   ├── UnknownChargeError
│   ├── UnknownRefundError
│   ├── OtherTermsError             the id was used for something else
│   └── NotRefundableError          the charge has not so much to give back
└── TryAgainError
    └── WrittenMeanwhileError       another request wrote the same at the same moment

DeliveryError                       a webhook was not answered with 2xx; it is sent again
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from servicekit.errors import RejectedError, TryAgainError


class UnknownChargeError(RejectedError):
    """There is no charge with this id."""

    def __init__(self, charge_id: str) -> None:
        super().__init__(f"there is no charge {charge_id!r}")
        self.charge_id = charge_id


class UnknownRefundError(RejectedError):
    """There is no refund with this id."""

    def __init__(self, refund_id: str) -> None:
        super().__init__(f"there is no refund {refund_id!r}")
        self.refund_id = refund_id


class OtherTermsError(RejectedError):
    """An id names one charge or one refund for ever."""

    def __init__(self, what: str, its_id: str) -> None:
        super().__init__(f"the {what} {its_id!r} was asked for before, with other terms; a new one needs a new id")


class NotRefundableError(RejectedError):
    """No charge gives back more than it took, nor another currency."""


class WrittenMeanwhileError(TryAgainError):
    """Another request wrote the same charge or refund at the same moment."""

    def __init__(self, what: str, its_id: str) -> None:
        super().__init__(f"the {what} {its_id!r} is being written by another request; repeat this one for its answer")


class DeliveryError(Exception):
    """The receiver of webhooks did not take one; the text says what it said."""


LATE_MAX_MS = 24 * 3_600_000
REORDERED_HOLD_MAX_MS = 1_000

BANK_DECLINED = "the bank declined"
OVER_THE_LIMIT = "the amount is over the limit"


@dataclass(frozen=True, slots=True)
class Failures:
    """Shares of all charges, from 0 to 1; late ones are late by `late_ms`. Raises ValueError.

    Which charges go wrong, and how. Nothing here is random: seed and charge id choose, so that a run can be repeated.

    Invariants: each failure is chosen for itself; a greater share chooses all that a smaller one chose, and more.
    """

    declined: float = 0.0
    late: float = 0.0
    late_ms: int = 0
    duplicated: float = 0.0
    reordered: float = 0.0
    never: float = 0.0

    def __post_init__(self) -> None:
        for name in SHARES:
            share = getattr(self, name)
            if not (math.isfinite(share) and 0 <= share <= 1):
                raise ValueError(f"{name}={share}: allowed is a share from 0 to 1")
        if not 0 <= self.late_ms <= LATE_MAX_MS:
            raise ValueError(f"late by {self.late_ms} ms: allowed are 0 to {LATE_MAX_MS}")

    @classmethod
    def parse(cls, text: str) -> Failures:
        """`declined=0.1,late=0.1:3000`: shares by name, late with its milliseconds; "" is none. Raises ValueError."""
        values: dict[str, Any] = {}
        for part in filter(None, text.split(",")):
            name, _, share = part.strip().partition("=")
            if name not in SHARES or name in values:
                raise ValueError(f"{part!r}: allowed is <failure>=<share>, once for each of {', '.join(SHARES)}")
            if name == "late":
                share, colon, late_ms = share.partition(":")
                if not (colon and late_ms.isascii() and late_ms.isdigit() and len(late_ms) <= len(str(LATE_MAX_MS))):
                    raise ValueError(f"{part!r}: allowed is late=<share>:<milliseconds>")
                values["late_ms"] = int(late_ms)
            try:
                values[name] = float(share)
            except ValueError:
                raise ValueError(f"{part!r}: {share!r} is not a share from 0 to 1") from None
        return cls(**values)

    def declines(self, seed: int, charge_id: str) -> bool:
        """Whether the charge is declined."""
        return _draw(seed, "declined", charge_id) < self.declined

    def delivery(self, seed: int, charge_id: str, event_id: str) -> Delivery:
        """How an event of the charge is told."""
        chosen: Mapping[str, bool] = {name: _draw(seed, name, charge_id) < getattr(self, name) for name in SHARES}
        wait_ms = self.late_ms if chosen["late"] else 0
        if chosen["reordered"]:
            wait_ms += int(_draw(seed, "hold", event_id) * REORDERED_HOLD_MAX_MS)
        copies = 0 if chosen["never"] else 1 + chosen["duplicated"]
        return Delivery(copies, wait_ms, holds_order=not chosen["reordered"])


SHARES = tuple(field.name for field in fields(Failures) if field.name != "late_ms")
NO_FAILURES = Failures()


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an event is told: so often, after so many milliseconds, and behind earlier ones of its charge or not."""

    copies: int
    wait_ms: int
    holds_order: bool


def _draw(seed: int, name: str, key: str) -> float:
    """A number in [0, 1) that looks random and is always the same for the same arguments."""
    digest = hashlib.sha256(f"{seed}/{name}/{key}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48  # 48 bits are exact in a float


class ChargeStatus(enum.StrEnum):
    """Where a charge stands."""

    PENDING = "pending"
    CAPTURED = "captured"
    DECLINED = "declined"


@dataclass(frozen=True, slots=True)
class ChargeTerms:
    """What is asked for; money is in the currency's minor unit."""

    charge_id: str
    order_id: str
    amount_minor: int
    currency: str
    method: str


@dataclass(frozen=True, slots=True)
class Charge:
    """A charge; times are wall-clock milliseconds. It is decided at `due_at_ms`, or soon after.

    `traceparent` is where it was asked for; nothing here looks into it.

    Invariants: its terms stay as they were asked for; it leaves PENDING once, and what was decided stays; decided_at_ms
    is set exactly when it is decided, decline_reason exactly when it is DECLINED.
    """

    terms: ChargeTerms
    created_at_ms: int
    due_at_ms: int
    status: ChargeStatus = ChargeStatus.PENDING
    decided_at_ms: int | None = None
    decline_reason: str | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if (self.decided_at_ms is None) != (self.status is ChargeStatus.PENDING) or (self.decline_reason is None) == (
            self.status is ChargeStatus.DECLINED
        ):
            raise ValueError(f"charge {self.charge_id!r} is {self.status}, and its time or its reason are not")

    @property
    def charge_id(self) -> str:
        return self.terms.charge_id

    def decided(self, decline_reason: str | None, at_ms: int) -> Charge:
        """The PENDING charge after its decision: CAPTURED, or DECLINED for a reason."""
        status = ChargeStatus.CAPTURED if decline_reason is None else ChargeStatus.DECLINED
        return replace(self, status=status, decided_at_ms=at_ms, decline_reason=decline_reason)


class RefundStatus(enum.StrEnum):
    """Where a refund stands."""

    PENDING = "pending"
    REFUNDED = "refunded"


@dataclass(frozen=True, slots=True)
class RefundTerms:
    """What is asked for; money is in the currency's minor unit."""

    refund_id: str
    charge_id: str
    amount_minor: int
    currency: str


@dataclass(frozen=True, slots=True)
class Refund:
    """A refund; times are wall-clock milliseconds. The money goes back at `due_at_ms`, or soon after.

    `traceparent` is where it was asked for; nothing here looks into it.

    Invariants: its terms stay as they were asked for; it leaves PENDING once; refunded_at_ms is set exactly when it is
    REFUNDED. The refunds of a charge, pending ones too, are never more than the charge.
    """

    terms: RefundTerms
    created_at_ms: int
    due_at_ms: int
    status: RefundStatus = RefundStatus.PENDING
    refunded_at_ms: int | None = None
    traceparent: str | None = None

    def __post_init__(self) -> None:
        if (self.refunded_at_ms is None) != (self.status is RefundStatus.PENDING):
            raise ValueError(f"refund {self.refund_id!r} is {self.status}, and its time is not")

    @property
    def refund_id(self) -> str:
        return self.terms.refund_id

    def refunded(self, at_ms: int) -> Refund:
        """The PENDING refund after the money went back."""
        return replace(self, status=RefundStatus.REFUNDED, refunded_at_ms=at_ms)


SIGNATURE_HEADER = "Gateway-Signature"


class EventType(enum.StrEnum):
    """What is told."""

    CHARGE_CAPTURED = "charge.captured"
    CHARGE_DECLINED = "charge.declined"
    REFUND_REFUNDED = "refund.refunded"


@dataclass(frozen=True, slots=True)
class Event:
    """One decision, as it is told.

    Invariants: an event has the same id and the same body each time that it is sent; only the time in its signature is
    new.
    """

    event_id: str
    type: EventType
    charge_id: str
    refund_id: str | None
    occurred_at_ms: int
    body: str


def of_charge(charge: Charge) -> Event:
    """The event of a charge that is decided."""
    is_captured = charge.status is ChargeStatus.CAPTURED
    members: dict[str, Any] = {
        "charge_id": charge.charge_id,
        "order_id": charge.terms.order_id,
        "amount_minor": charge.terms.amount_minor,
        "currency": charge.terms.currency,
    }
    if not is_captured:
        members["decline_reason"] = charge.decline_reason
    event_type = EventType.CHARGE_CAPTURED if is_captured else EventType.CHARGE_DECLINED
    return _event(event_type, charge.charge_id, None, _set(charge.decided_at_ms), members)


def of_refund(refund: Refund, order_id: str) -> Event:
    """The event of a refund that is done."""
    members = {
        "charge_id": refund.terms.charge_id,
        "order_id": order_id,
        "amount_minor": refund.terms.amount_minor,
        "currency": refund.terms.currency,
        "refund_id": refund.refund_id,
    }
    at_ms = _set(refund.refunded_at_ms)
    return _event(EventType.REFUND_REFUNDED, refund.terms.charge_id, refund.refund_id, at_ms, members)


def signature(secrets: Sequence[str], body: bytes, at_s: int) -> str:
    """The value of SIGNATURE_HEADER: one v1 for each secret, so that the receiver can change its own at any time."""
    signed = f"{at_s}.".encode() + body
    digests = (hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest() for secret in secrets)
    return ",".join([f"t={at_s}", *(f"v1={digest}" for digest in digests)])


def _event(event_type: EventType, charge_id: str, refund_id: str | None, at_ms: int, members: dict[str, Any]) -> Event:
    # From what it is about: the same decision never has two ids.
    name = f"{event_type}/{charge_id}/{refund_id or ''}"
    event_id = "evt-" + hashlib.sha256(name.encode()).hexdigest()[:32]
    body = {"event_id": event_id, "type": event_type, "occurred_at_ms": at_ms, "data": members}
    return Event(event_id, event_type, charge_id, refund_id, at_ms, json.dumps(body, separators=(",", ":")))


def _set(at_ms: int | None) -> int:
    if at_ms is None:
        raise ValueError("what is not decided yet cannot be told")
    return at_ms


@dataclass(frozen=True, slots=True)
class Book:
    """What was taken and given back: sums in minor units, and how many captures and refunds there were."""

    captured_minor: int
    refunded_minor: int
    captures: int
    refunds: int


@dataclass(frozen=True, slots=True)
class WaitingWebhook:
    """A webhook that has to be sent at `next_attempt_at_ms`, or sent again, in the trace of what it tells."""

    webhook_id: int
    event_id: str
    body: str
    attempts: int
    next_attempt_at_ms: int
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of sending a webhook: 2xx if `error` is None. Whatever is left is sent at `next_attempt_at_ms`."""

    webhook_id: int
    next_attempt_at_ms: int
    error: str | None
