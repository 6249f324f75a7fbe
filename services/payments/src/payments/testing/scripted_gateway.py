"""A gateway for tests: keeps its book in memory, and does what its script says."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from osenv import Clock
from payments.domain.errors import GatewayRefusedError, GatewayUnavailableError
from payments.service.gateway import Captured, Declined, GatewayBook, Refunded


class Step(enum.Enum):
    """What happens to one call."""

    SUCCEED = "succeed"
    DECLINE = "decline"  # a capture, and for ever
    FAIL_BEFORE = "fail before the effect"
    FAIL_AFTER = "fail after the effect"
    HOLD = "wait for `release`, then succeed"


class ScriptedGateway:
    """Implements `PaymentGateway`. Each capture and refund takes the next step of `script`, then all SUCCEED."""

    def __init__(self, clock: Clock, *script: Step) -> None:
        self.script = list(script)
        self.captures: dict[str, tuple[int, str, Captured | Declined]] = {}
        self.refunds: dict[str, tuple[str, int, str, Refunded]] = {}
        self.calls = 0
        self.release = asyncio.Event()
        self._clock = clock

    async def capture(self, payment_id: str, amount_minor: int, currency: str) -> Captured | Declined:
        async with self._step() as step:
            answer = Declined("no money") if step is Step.DECLINE else Captured(self._clock.wall_ms())
            known = self.captures.setdefault(payment_id, (amount_minor, currency, answer))
            if known[:2] != (amount_minor, currency):
                raise GatewayRefusedError(f"{payment_id!r} was captured with another amount or currency")
        return known[2]

    async def refund(self, refund_id: str, payment_id: str, amount_minor: int, currency: str) -> Refunded:
        async with self._step():
            known = self.refunds.get(refund_id)
            if known is None:
                self._check_refundable(payment_id, amount_minor, currency)
                known = (payment_id, amount_minor, currency, Refunded(self._clock.wall_ms()))
                self.refunds[refund_id] = known
            elif known[:3] != (payment_id, amount_minor, currency):
                raise GatewayRefusedError(f"{refund_id!r} was used for another refund")
        return known[3]

    async def book(self) -> GatewayBook:
        taken = [amount for amount, _, answer in self.captures.values() if isinstance(answer, Captured)]
        given_back = [amount for _, amount, _, _ in self.refunds.values()]
        return GatewayBook(sum(taken), sum(given_back), len(taken), len(given_back))

    @asynccontextmanager
    async def _step(self) -> AsyncIterator[Step]:
        self.calls += 1
        step = self.script.pop(0) if self.script else Step.SUCCEED
        if step is Step.HOLD:
            await self.release.wait()
        if step is Step.FAIL_BEFORE:
            raise GatewayUnavailableError("the gateway does not answer")
        yield step
        if step is Step.FAIL_AFTER:
            raise GatewayUnavailableError("the gateway does not answer any more")

    def _check_refundable(self, payment_id: str, amount_minor: int, currency: str) -> None:
        captured = self.captures.get(payment_id)
        if captured is None or isinstance(captured[2], Declined):
            raise GatewayRefusedError(f"no money was taken for {payment_id!r}")
        refunded_minor = sum(amount for owner, amount, _, _ in self.refunds.values() if owner == payment_id)
        if currency != captured[1] or refunded_minor + amount_minor > captured[0]:
            raise GatewayRefusedError(f"{payment_id!r} has no {amount_minor} {currency} left to give back")
