"""The signature of a webhook: who sent it, and when (RELIABILITY.md (d), row 1).

    Gateway-Signature: t=<unix seconds>,v1=<hex of HMAC-SHA256 over "<t>." and the raw body>[,v1=...]

Invariants: the body is checked as it came, byte for byte, before anything reads it; a signature is compared in constant
time; one that is older or newer than WINDOW_S is refused, so that what was overheard is of use for so long at most.
Several v1, and several secrets here, let both sides change a secret without losing an event.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from osenv import Clock
from payments.domain.errors import InvalidSignatureError

HEADER = "Gateway-Signature"
WINDOW_S = 300
SECRET_MIN_CHARACTERS = 32
SIGNATURES_MAX = 8  # each costs an HMAC per secret

_TIME = re.compile(r"[0-9]{1,12}")
_SIGNATURE = re.compile(r"[0-9a-f]{64}")


class WebhookSignatures:
    """Verifies with every secret. Raises ValueError when there is none, or a short one."""

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
