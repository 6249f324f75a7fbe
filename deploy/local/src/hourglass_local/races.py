"""How the payments around the expiry ended: each of them and the closing of its order wanted the same order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from hourglass_local.buyers import PaymentAttempt
from hourglass_local.payment_desk import DECLINED, REFUNDED, Payment
from hourglass_local.plan import RACE_MS, Pays
from hourglass_local.shop import Order


@dataclass(frozen=True, slots=True)
class Races:
    """Payments that were aimed at the expiry of their order, and either won in its last 300 ms, or lost.

    `won` paid the order, the money being taken RACE_MS before the expiry or later; `refunded` were taken, met a closed
    order and went back; `refused` came when payments had heard of the closing, or were declined, and nothing was
    charged.
    """

    won: int
    refunded: int
    refused: int

    @property
    def total(self) -> int:
        return self.won + self.refunded + self.refused

    @classmethod
    def of(
        cls, attempts: Iterable[PaymentAttempt], orders: Mapping[str, Order], payments: Mapping[str, Payment]
    ) -> Self:
        """`orders` and `payments` are those at the end."""
        won = refunded = refused = 0
        for attempt in attempts:
            if attempt.planned.pays is not Pays.AT_EXPIRY:
                continue
            if attempt.payment is None or attempt.payment.status == DECLINED:
                refused += 1
                continue
            payment = payments.get(attempt.payment.payment_id)
            order = orders.get(attempt.payment.order_id)
            if payment is None or order is None or payment.captured_at_ms is None:
                continue
            if payment.status == REFUNDED:
                refunded += 1
            elif order.payment_id == payment.payment_id and payment.captured_at_ms >= order.expires_at_ms - RACE_MS:
                won += 1
        return cls(won, refunded, refused)
