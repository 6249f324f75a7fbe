"""Which charges go wrong, and how. Nothing here is random: seed and charge id choose, so that a run can be repeated.

Invariants: each failure is chosen for itself; a greater share chooses all that a smaller one chose, and more.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

LATE_MAX_MS = 24 * 3_600_000
REORDERED_HOLD_MAX_MS = 1_000

BANK_REFUSED = "the bank refused"
OVER_THE_LIMIT = "the amount is over the limit"


@dataclass(frozen=True, slots=True)
class Failures:
    """Shares of all charges, from 0 to 1; late ones are late by `late_ms`. Raises ValueError."""

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
