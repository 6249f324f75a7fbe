"""Idempotency keys: a request that is repeated with its key is answered with what the first one made.

    with self._in_flight.holding(buyer_id, key):
        async with units.writing() as unit:
            earlier = await unit.keys.find(buyer_id, key)
            if earlier is not None:
                earlier.require_fingerprint(fingerprint(request))
                ... answer with the result of earlier.result_id ...
            await unit.keys.claim(KeyClaim(buyer_id, key, fingerprint(request), new_id), now_ms)
            ... make it, and commit ...

A key belongs to its subject, who used it: two buyers may use one text, and neither learns of the other.

Invariants: a key of a subject makes at most one result, because its claim is part of the result's own transaction; a
request that was refused leaves no claim behind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Protocol

from servicekit.errors import KeyReusedError, RequestInFlightError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class KeyClaim:
    """A key that was used: by whom, for which payload, and what came of it."""

    subject: str
    key: str
    fingerprint: str
    result_id: str

    def require_fingerprint(self, fingerprint: str) -> None:
        """Raises KeyReusedError when the key was used for another payload."""
        if self.fingerprint != fingerprint:
            raise KeyReusedError(self.key)


class IdempotencyKeys(Protocol):
    """The keys that were used, as part of a unit of work."""

    async def find(self, subject: str, key: str) -> KeyClaim | None:
        """The subject's earlier use of the key, if there was one."""

    async def claim(self, claim: KeyClaim, at_ms: int) -> None:
        """Raises RequestInFlightError when another process claims the key at the same moment."""


class InFlightKeys:
    """The keys whose requests are being carried out by this process.

    In memory on purpose: a key "in flight" in the database would stay so after a crash. Between processes the claim
    decides.
    """

    def __init__(self) -> None:
        self._keys: set[tuple[str, str]] = set()

    @contextmanager
    def holding(self, subject: str, key: str) -> Iterator[None]:
        """Raises RequestInFlightError when another request of the subject holds the key."""
        held = (subject, key)
        if held in self._keys:
            raise RequestInFlightError(key)
        self._keys.add(held)
        try:
            yield
        finally:
            self._keys.discard(held)


def fingerprint(request: DataclassInstance) -> str:
    """Equal for equal requests, whatever their JSON looked like; 64 characters."""
    return hashlib.sha256(json.dumps(asdict(request), sort_keys=True).encode()).hexdigest()
