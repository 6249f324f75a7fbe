"""A gateway for tests: keeps its book in memory, does what its script says, and makes the bodies of its webhooks."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from osenv import Clock
from payments.domain.errors import GatewayRefusedError, GatewayUnavailableError
from payments.service.gateway import Captured, ChargeRequest, Declined, GatewayBook, Pending, Refunded, RefundOrder

NO_MONEY = "no money"


class Step(enum.Enum):
    """What happens to one charge or refund."""

    SUCCEED = "succeed"
    DECLINE = "decline"  # a charge, and for ever
    PEND = "take note, and decide when the test says so"
    FAIL_BEFORE = "fail before the effect"
    FAIL_AFTER = "fail after the effect"
    REFUSE = "refuse for good"
    HOLD = "wait for `release`, then succeed"


class ScriptedGateway:
    """Implements `PaymentGateway`. Each charge and refund takes the next step of `script`, then all do `otherwise`.

    `calls` counts charges, refunds and questions. `decide` decides what pends, `events_of` makes its webhooks.
    """

    def __init__(self, clock: Clock, *script: Step, otherwise: Step = Step.SUCCEED) -> None:
        self.script = list(script)
        self.otherwise = otherwise
        self.charges: dict[str, tuple[ChargeRequest, Pending | Captured | Declined]] = {}
        self.refunds: dict[str, tuple[RefundOrder, Pending | Refunded]] = {}
        self.calls = 0
        self.is_away = False
        self.release = asyncio.Event()
        self._clock = clock

    async def charge(self, request: ChargeRequest) -> Pending | Captured | Declined:
        async with self._step() as step:
            known, answer = self.charges.setdefault(request.payment_id, (request, self._answer(step)))
            if known != request:
                raise GatewayRefusedError(f"{request.payment_id!r} was charged with other terms")
        return answer

    async def find_charge(self, payment_id: str) -> Pending | Captured | Declined | None:
        self._count_call()
        known = self.charges.get(payment_id)
        return None if known is None else known[1]

    async def refund(self, order: RefundOrder) -> Pending | Refunded:
        async with self._step() as step:
            if order.refund_id not in self.refunds:
                self._check_refundable(order)
                answer = Pending() if step is Step.PEND else Refunded(self._clock.wall_ms())
                self.refunds[order.refund_id] = (order, answer)
            known, answer = self.refunds[order.refund_id]
            if known != order:
                raise GatewayRefusedError(f"{order.refund_id!r} was used for another refund")
        return answer

    async def find_refund(self, refund_id: str) -> Pending | Refunded | None:
        self._count_call()
        known = self.refunds.get(refund_id)
        return None if known is None else known[1]

    async def book(self) -> GatewayBook:
        taken = [request.amount_minor for request, answer in self.charges.values() if isinstance(answer, Captured)]
        given_back = [order.amount_minor for order, answer in self.refunds.values() if isinstance(answer, Refunded)]
        return GatewayBook(sum(taken), sum(given_back), len(taken), len(given_back))

    def decide(self, its_id: str, *, declines: bool = False) -> dict[str, Any]:
        """Decide a charge or refund that pends; returns the body of its webhook."""
        now_ms = self._clock.wall_ms()
        if its_id in self.refunds:
            self.refunds[its_id] = (self.refunds[its_id][0], Refunded(now_ms))
        else:
            answer = Declined(NO_MONEY) if declines else Captured(now_ms)
            self.charges[its_id] = (self.charges[its_id][0], answer)
        return self.event_of(its_id)

    def event_of(self, its_id: str) -> dict[str, Any]:
        """The body of the webhook of a charge or refund that is decided; the same each time.

        Raises ValueError for one that pends, whose decision nobody can tell yet.
        """
        if its_id in self.refunds:
            order, refunded = self.refunds[its_id]
            request = self.charges[order.payment_id][0]
            event = self._event("refund.refunded", its_id, request, refunded)
            event["data"] |= {"refund_id": order.refund_id, "amount_minor": order.amount_minor}
            return event
        request, decision = self.charges[its_id]
        if isinstance(decision, Declined):
            event = self._event("charge.declined", its_id, request, decision)
            event["data"]["decline_reason"] = decision.reason
            return event
        return self._event("charge.captured", its_id, request, decision)

    def _event(
        self, kind: str, its_id: str, request: ChargeRequest, decision: Pending | Captured | Declined | Refunded
    ) -> dict[str, Any]:
        if isinstance(decision, Pending):
            raise ValueError(f"{its_id!r} is not decided")  # noqa: TRY004 - of the right type, at the wrong time
        data = {
            "charge_id": request.payment_id,
            "order_id": request.order_id,
            "amount_minor": request.amount_minor,
            "currency": request.currency,
        }
        at_ms = self._clock.wall_ms() if isinstance(decision, Declined) else decision.at_ms
        return {"event_id": f"{kind}/{its_id}", "type": kind, "occurred_at_ms": at_ms, "data": data}

    def change_charge(self, payment_id: str, **changes: Any) -> None:
        """The gateway keeps other terms than it was told."""
        request, answer = self.charges[payment_id]
        self.charges[payment_id] = (replace(request, **changes), answer)

    @asynccontextmanager
    async def _step(self) -> AsyncIterator[Step]:
        self._count_call()
        step = self.script.pop(0) if self.script else self.otherwise
        if step is Step.HOLD:
            await self.release.wait()
        if step is Step.REFUSE:
            raise GatewayRefusedError("the account is closed")
        if step is Step.FAIL_BEFORE:
            raise GatewayUnavailableError("the gateway does not answer")
        yield step
        if step is Step.FAIL_AFTER:
            raise GatewayUnavailableError("the gateway does not answer any more")

    def _count_call(self) -> None:
        self.calls += 1
        if self.is_away:
            raise GatewayUnavailableError("the gateway is away")

    def _answer(self, step: Step) -> Pending | Captured | Declined:
        if step is Step.PEND:
            return Pending()
        return Declined(NO_MONEY) if step is Step.DECLINE else Captured(self._clock.wall_ms())

    def _check_refundable(self, order: RefundOrder) -> None:
        request, answer = self.charges.get(order.payment_id, (None, None))
        if request is None or not isinstance(answer, Captured):
            raise GatewayRefusedError(f"no money was taken for {order.payment_id!r}")
        taken = [other.amount_minor for other, _ in self.refunds.values() if other.payment_id == order.payment_id]
        if order.currency != request.currency or sum(taken) + order.amount_minor > request.amount_minor:
            raise GatewayRefusedError(
                f"{order.payment_id!r} has no {order.amount_minor} {order.currency} left to give back"
            )
