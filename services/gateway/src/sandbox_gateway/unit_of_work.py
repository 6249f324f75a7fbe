"""The port to the database: units of work, each one transaction.

Invariants: what is decided is decided by compare-and-set on PENDING, and the row count decides; a decision and its
webhook are written in one unit. No call goes over the network inside a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from sandbox_gateway.domain import Charge, Delivery, Event, Refund, RefundTerms


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


class Charges(Protocol):
    """The charges."""

    async def find(self, charge_id: str) -> Charge | None: ...

    async def add(self, charge: Charge) -> None:
        """Raises WrittenMeanwhileError when another request has just written this charge."""

    async def decide(self, decided: Charge) -> bool:
        """False, and nothing changed, if the charge was decided before."""

    async def set_aside(self, terms: RefundTerms) -> bool:
        """Count a refund against its charge; False if that is not captured or has not so much left of the currency."""

    async def next_due(self, limit: int) -> list[Charge]:
        """At most `limit` PENDING charges, those that are due first before others."""


class Refunds(Protocol):
    """The refunds."""

    async def find(self, refund_id: str) -> Refund | None: ...

    async def add(self, refund: Refund) -> None:
        """Raises WrittenMeanwhileError when another request has just written this refund."""

    async def finish(self, refunded: Refund) -> bool:
        """False, and nothing changed, if the money went back before."""

    async def next_due(self, limit: int) -> list[Refund]:
        """At most `limit` PENDING refunds, those that are due first before others."""


class Webhooks(Protocol):
    """The webhooks, sent and unsent."""

    async def add(self, event: Event, delivery: Delivery, traceparent: str | None) -> None: ...

    async def next_due(self, limit: int) -> list[WaitingWebhook]:
        """At most `limit` that have to be sent and wait for no earlier one, those that are due first before others."""

    async def record(self, attempts: Sequence[Attempt]) -> None:
        """Write down what came of sending."""


class UnitOfWork(Protocol):
    """One database transaction."""

    @property
    def charges(self) -> Charges: ...

    @property
    def refunds(self) -> Refunds: ...

    @property
    def webhooks(self) -> Webhooks: ...

    async def book(self) -> Book:
        """The sums of everything that ever happened."""

    async def commit(self) -> None:
        """Make the unit's changes durable; without it they are rolled back."""


class Units(Protocol):
    """Opens units of work. Both raise StorageUnavailableError when the database does not answer."""

    def reading(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that only reads, and sees one state of the database."""

    def writing(self) -> AbstractAsyncContextManager[UnitOfWork]:
        """A unit that may write."""
