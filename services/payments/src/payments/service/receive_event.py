"""Events of the gateway: their signatures, and what a received event changes."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

import structlog

from osenv import Clock
from payments.domain.errors import EventKnownError, InvalidSignatureError, StatusChangedError
from payments.domain.gateway_event import EventKind, EventStatus, GatewayEvent, judge
from payments.domain.payment import Payment
from payments.domain.refund import Refund
from payments.service.settlement import ATTEMPTS_MAX, Bookkeeper
from payments.service.use_case import Units, in_trace_of

HEADER = "Gateway-Signature"
WINDOW_S = 300
SECRET_MIN_CHARACTERS = 32
SIGNATURES_MAX = 8  # each costs an HMAC per secret

_TIME = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")


class WebhookSignatures:
    """Verifies with every secret. Raises ValueError when there is none, or a short one.

    The signature of a webhook proves its sender and its time.

        Gateway-Signature: t=<unix seconds>,v1=<hex of HMAC-SHA256 over "<t>." and the raw body>[,v1=...]

    Invariants: the body is checked as it came, byte for byte, before anything reads it; a signature is compared in
    constant time; one that is older or newer than WINDOW_S is rejected, so that what was overheard is of use for so
    long at most. Several v1, and several secrets here, let both sides change a secret without losing an event.
    """

    def __init__(self, secrets: Sequence[str], clock: Clock) -> None:
        if not secrets or min(len(secret) for secret in secrets) < SECRET_MIN_CHARACTERS:
            raise ValueError(f"webhooks need secrets of at least {SECRET_MIN_CHARACTERS} characters")
        self._secrets = tuple(secrets)
        self._clock = clock

    def verify(self, header: str | None, body: bytes) -> None:
        """Return if the gateway sent this body a moment ago. Raises InvalidSignatureError."""
        if header is None:
            raise InvalidSignatureError(f"the header {HEADER} is missing")
        time_text, signatures = _read(header)
        if abs(self._clock.wall_ms() - int(time_text) * 1000) > WINDOW_S * 1000:
            raise InvalidSignatureError(f"the signature is not of the last or next {WINDOW_S} s")
        is_valid = False
        for secret in self._secrets:
            expected = sign(secret, time_text, body)
            for signature in signatures:
                is_valid |= hmac.compare_digest(expected, signature)
        if not is_valid:
            raise InvalidSignatureError("the signature is not of this body and a secret in use")


def sign(secret: str, time_text: str, body: bytes) -> str:
    """The v1 signature of a body that is sent at this unix second."""
    return hmac.new(secret.encode(), time_text.encode() + b"." + body, hashlib.sha256).hexdigest()


def _read(header: str) -> tuple[str, list[str]]:
    """The time and the v1 signatures; members of other names belong to schemes that are not known here."""
    members = [member.strip().partition("=") for member in header.split(",")]
    times = [value for name, _, value in members if name == "t"]
    signatures = [value for name, _, value in members if name == "v1"]
    if (
        len(times) != 1
        or not _TIME.fullmatch(times[0])
        or not 1 <= len(signatures) <= SIGNATURES_MAX
        or not all(_SIGNATURE.fullmatch(signature) for signature in signatures)
    ):
        raise InvalidSignatureError(f"{HEADER} is not of the form t=<unix seconds>,v1=<64 hex digits>")
    return times[0], signatures


RECEIVE_EVENT = "receive event"  # the name of its span
NO_REASON = "the gateway gave no reason"

log = structlog.get_logger(__name__)


class ReceiveEvent:
    """The use case behind POST /webhooks/gateway; an event may come twice, late, and in any order.

    Invariants: an event id is taken note of once and for ever, in the unit that carries the event out; what contradicts
    the payment is kept as REFUSED and changes nothing, and it is answered like any other: a repetition would mend
    nothing.
    """

    def __init__(self, units: Units, bookkeeper: Bookkeeper) -> None:
        self._units = units
        self._bookkeeper = bookkeeper

    async def __call__(self, event: GatewayEvent) -> EventStatus:
        """What became of the event, now or when it came first.

        Raises StorageUnavailableError and StatusChangedError: the gateway has to deliver it again then.
        """
        for _ in range(ATTEMPTS_MAX):
            try:
                return await self._receive(event)
            except (StatusChangedError, EventKnownError):
                continue  # another delivery was faster: look again
        raise StatusChangedError("payment", event.payment_id)

    async def _receive(self, event: GatewayEvent) -> EventStatus:
        async with self._units.snapshot() as unit:
            known = await unit.gateway_events.find(event.event_id)
            payment = await unit.payments.find(event.payment_id)
            refund = None if event.refund_id is None else await unit.refunds.find(event.refund_id)
        if known is not None:
            return known.judgement.status
        judgement = judge(event, payment, refund)
        if payment is not None and judgement.status is EventStatus.HANDLED:
            with in_trace_of(payment, RECEIVE_EVENT, refund):
                await self._carry_out(event, payment, refund)
            return judgement.status
        await self._bookkeeper.noted(event, judgement)
        if judgement.status is EventStatus.REFUSED:
            log.error(
                "an event of the gateway was rejected",
                event_id=event.event_id,
                kind=event.kind,
                payment_id=event.payment_id,
                reason=judgement.reason,
            )
        return judgement.status

    async def _carry_out(self, event: GatewayEvent, payment: Payment, refund: Refund | None) -> None:
        if refund is not None:
            await self._bookkeeper.refunded(payment, refund, event.occurred_at_ms, event)
        elif event.kind is EventKind.CHARGE_CAPTURED:
            await self._bookkeeper.captured(payment, event.occurred_at_ms, event)
        else:
            await self._bookkeeper.declined(payment, event.decline_reason or NO_REASON, event.occurred_at_ms, event)
