"""Payments and dead letters as tests of the pages want them: they remember, and fail when they are told to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orders.service.payments import (
    DECLINED,
    IN_PROGRESS,
    OrderToPay,
    PaymentRejectedError,
    PaymentsUnavailableError,
    PaymentView,
    RefundPage,
    RefundView,
    UnknownDeadLetterError,
)
from orders.service.queries import DeadLettersOfGroup, DeadLetterView
from osenv import Clock
from servicekit.auth import Caller
from servicekit.errors import QueueUnreachableError

METHODS = ("card", "wallet", "bank_transfer")


class ScriptedDesk:
    """Implements `PaymentDesk`. `decides` is the status of new payments, `rejects_with` an error instead of any."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.decides = IN_PROGRESS
        self.is_away = False
        self.rejects_with: PaymentRejectedError | None = None
        self.payments: dict[str, PaymentView] = {}  # by idempotency key
        self.all_refunds: dict[str, RefundView] = {}  # by idempotency key
        self.heard: dict[str, str] = {}  # by order id
        self.callers: list[Caller] = []

    async def methods(self, caller: Caller) -> tuple[str, ...]:
        self._answer(caller)
        return METHODS

    async def pay(self, caller: Caller, order: OrderToPay, method: str, key: str) -> PaymentView:
        self._answer(caller)
        if self.rejects_with is not None:
            raise self.rejects_with
        if key not in self.payments:
            is_captured = self.decides not in (IN_PROGRESS, DECLINED)
            self.payments[key] = PaymentView(
                payment_id=f"payment-{len(self.payments) + 1}",
                order_id=order.order_id,
                amount_minor=order.amount_minor,
                refunded_minor=0,
                currency=order.currency,
                method=method,
                status=self.decides,
                created_at_ms=self._clock.wall_ms(),
                captured_at_ms=self._clock.wall_ms() if is_captured else None,
                decline_reason="insufficient-funds" if self.decides == DECLINED else None,
            )
        if self.payments[key].status == DECLINED:
            raise PaymentRejectedError("payment-declined", 402, "the gateway declined it")
        return self.payments[key]

    async def payments_of(self, caller: Caller, order_id: str) -> tuple[PaymentView, ...]:
        self._answer(caller)
        return tuple(one for one in reversed(self.payments.values()) if one.order_id == order_id)

    async def payment(self, caller: Caller, payment_id: str) -> PaymentView:
        self._answer(caller)
        for payment in self.payments.values():
            if payment.payment_id == payment_id:
                return payment
        raise PaymentRejectedError("unknown-payment", 404, f"there is no payment {payment_id!r}")

    async def heard_of(self, caller: Caller, order_ids: Sequence[str]) -> dict[str, str]:
        self._answer(caller)
        return {order_id: self.heard[order_id] for order_id in order_ids if order_id in self.heard}

    async def refunds_of(self, caller: Caller, payment_id: str) -> tuple[RefundView, ...]:
        self._answer(caller)
        return tuple(one for one in self.all_refunds.values() if one.payment_id == payment_id)

    async def refund(self, caller: Caller, payment_id: str, amount_minor: int, reason: str, key: str) -> RefundView:
        self._answer(caller)
        if key not in self.all_refunds:
            place, payment = next(one for one in self.payments.items() if one[1].payment_id == payment_id)
            if amount_minor > payment.amount_minor - payment.refunded_minor:
                raise PaymentRejectedError("refund-too-large", 422, "more than what is left")
            now_ms = self._clock.wall_ms()
            self.payments[place] = replace(
                payment, refunded_minor=payment.refunded_minor + amount_minor, status="PARTIALLY_REFUNDED"
            )
            self.all_refunds[key] = RefundView(
                refund_id=f"refund-{len(self.all_refunds) + 1}",
                payment_id=payment_id,
                amount_minor=amount_minor,
                currency=payment.currency,
                reason=reason,
                requested_by=caller.subject,
                status="REFUNDED",
                requested_at_ms=now_ms,
                refunded_at_ms=now_ms,
            )
        return self.all_refunds[key]

    async def retry_refund(self, caller: Caller, payment_id: str, refund_id: str) -> RefundView:
        self._answer(caller)
        if self.rejects_with is not None:
            raise self.rejects_with
        for key, refund in self.all_refunds.items():
            if (refund.payment_id, refund.refund_id) == (payment_id, refund_id):
                self.all_refunds[key] = replace(refund, status="REFUNDED", failure=None)
                return self.all_refunds[key]
        raise PaymentRejectedError("unknown-refund", 404, f"there is no refund {refund_id!r}")

    async def refunds(self, caller: Caller, cursor: str | None, status: str | None = None) -> RefundPage:
        self._answer(caller)
        found = [refund for refund in self.all_refunds.values() if status in (None, refund.status)]
        return RefundPage(tuple(found), None)

    def _answer(self, caller: Caller) -> None:
        self.callers.append(caller)
        if self.is_away:
            raise PaymentsUnavailableError("payments does not answer")


class ScriptedDeadLetters:
    """Implements `DeadLetters`: `letters` are the open ones."""

    def __init__(self) -> None:
        self.letters: list[DeadLetterView] = []
        self.replayed: list[DeadLetterView] = []
        self.is_away = False

    async def open_letters(self) -> tuple[DeadLettersOfGroup, ...]:
        self._answer()
        groups = dict.fromkeys(letter.group for letter in self.letters)
        return tuple(
            DeadLettersOfGroup(group, tuple(one for one in self.letters if one.group == group), has_more=False)
            for group in groups
        )

    async def replay(self, group: str, letter_id: str) -> None:
        self._answer()
        for letter in self.letters:
            if (letter.group, letter.letter_id) == (group, letter_id):
                self.letters.remove(letter)
                self.replayed.append(letter)
                return
        raise UnknownDeadLetterError(group, letter_id)

    def _answer(self) -> None:
        if self.is_away:
            raise QueueUnreachableError("the queue does not answer")
