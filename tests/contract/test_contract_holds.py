"""A payment's hold on its order lasts until the payment has captured: what orders allows is what payments takes."""

from __future__ import annotations

from orders.domain.order import CAPTURE_MAX_MS
from payments.adapters.outside import ANSWER_MAX_S
from payments.service.gateway import PATIENCE_S


def test_no_hold_is_shorter_than_what_payments_waits_for_it_and_for_the_gateway() -> None:
    assert (ANSWER_MAX_S + PATIENCE_S) * 1000 == CAPTURE_MAX_MS
