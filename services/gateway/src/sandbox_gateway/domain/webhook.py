"""The webhooks: what they say, and how they are signed.

Invariants: an event has the same id and the same body each time that it is sent; only the time in its signature is new.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sandbox_gateway.domain.charge import Charge, ChargeStatus
from sandbox_gateway.domain.refund import Refund

SIGNATURE_HEADER = "Gateway-Signature"


class EventType(enum.StrEnum):
    """What is told."""

    CHARGE_CAPTURED = "charge.captured"
    CHARGE_DECLINED = "charge.declined"
    REFUND_REFUNDED = "refund.refunded"


@dataclass(frozen=True, slots=True)
class Event:
    """One decision, as it is told."""

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
