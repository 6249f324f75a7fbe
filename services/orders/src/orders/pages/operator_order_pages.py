"""One order as an operator sees it: its history with actors and traces, its money, and what can be done.

Every command is for the version that the operator has seen: what has changed since is looked at first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import RedirectResponse, Response

from orders.domain.order import TRANSITIONS, ChangeReason, OrderStatus
from orders.pages.cart_pages import Key
from orders.pages.language import NotAnAmountError, parse_amount
from orders.pages.order_pages import OrderId
from orders.pages.parts import ROOT, BadAmountError, PageParts, PartsOf, VisitorOf, needs
from orders.service.payment_desk import PaymentsUnavailableError, PaymentView, RefundView, UnknownPaymentError
from servicekit.auth import ORDERS_ALL, ORDERS_SHIP, PAYMENTS_ALL, REFUNDS_WRITE, Caller
from servicekit.http.parameters import ID_PATTERN

router = APIRouter(prefix="/operator/orders/{order_id}")

REASON_PATTERN = r"^[^\x00-\x1f\x7f]*$"

Watcher = Annotated[Caller, Depends(needs(ORDERS_ALL))]
Seller = Annotated[Caller, Depends(needs(ORDERS_SHIP))]
Refunder = Annotated[Caller, Depends(needs(REFUNDS_WRITE))]
Version = Annotated[int, Form(ge=1)]


@dataclass(frozen=True, slots=True)
class PaymentWithRefunds:
    """A payment, and all that was asked back of it."""

    payment: PaymentView
    refunds: tuple[RefundView, ...]

    @property
    def left_minor(self) -> int:
        """What can still be given back: what is on its way counts as gone."""
        asked_minor = sum(refund.amount_minor for refund in self.refunds)
        return max(0, self.payment.amount_minor - asked_minor) if self.payment.was_captured else 0


@dataclass(frozen=True, slots=True)
class Money:
    """An order's payments; `is_away`: payments does not answer."""

    payments: tuple[PaymentWithRefunds, ...] = ()
    is_away: bool = False


@router.get("")
async def show_order(
    request: Request, parts: PartsOf, visitor: VisitorOf, caller: Watcher, order_id: OrderId
) -> Response:
    order = await parts.use_cases.queries.order(order_id, caller)
    may_see_money = visitor.may(PAYMENTS_ALL)
    history, products, money = await asyncio.gather(
        parts.use_cases.queries.history(order_id, caller),
        parts.baskets.products([line.product_id for line in order.lines]),
        _money(parts, caller, order_id) if may_see_money else _no_money(),
    )
    return parts.renderer.page(
        request,
        visitor,
        "operator_order.html",
        order=order,
        history=history,
        products=products,
        money_of=money,
        may_see_money=may_see_money,
        may_refund=visitor.may(REFUNDS_WRITE),
        can_ship=_can(order.status, ChangeReason.SHIPPED) and visitor.may(ORDERS_SHIP),
        can_cancel=_can(order.status, ChangeReason.SELLER_CANCELLED) and visitor.may(ORDERS_SHIP),
        trace_url=parts.trace_url,
        key=parts.new_key(),
    )


@router.post("/ship")
async def ship(parts: PartsOf, caller: Seller, order_id: OrderId, version: Version) -> Response:
    await parts.use_cases.ship_order(order_id, caller, version)
    return _to_order(order_id)


@router.post("/cancel")
async def cancel(parts: PartsOf, caller: Seller, order_id: OrderId, version: Version) -> Response:
    await parts.use_cases.close_order.cancel(order_id, caller, version)
    return _to_order(order_id)


@router.post("/refund")
async def refund(
    *,
    parts: PartsOf,
    caller: Refunder,
    order_id: OrderId,
    payment_id: Annotated[str, Form(pattern=ID_PATTERN)],
    amount: Annotated[str, Form(max_length=30)],
    reason: Annotated[str, Form(min_length=1, max_length=200, pattern=REASON_PATTERN)],
    key: Key,
) -> Response:
    payments = await parts.desk.payments_of(caller, order_id)
    payment = next((one for one in payments if one.payment_id == payment_id), None)
    if payment is None:
        raise UnknownPaymentError(payment_id)
    try:
        amount_minor = parse_amount(amount, payment.currency)
    except NotAnAmountError as error:
        raise BadAmountError(str(error)) from error
    await parts.desk.refund(caller, payment_id, amount_minor, reason, key)
    return _to_order(order_id)


def _can(status: OrderStatus, reason: ChangeReason) -> bool:
    return (status, reason) in TRANSITIONS


async def _money(parts: PageParts, caller: Caller, order_id: str) -> Money:
    """Never fails for want of payments: the history is what an operator needs most when something is away."""
    try:
        payments = await parts.desk.payments_of(caller, order_id)
        refunds = await asyncio.gather(*(parts.desk.refunds_of(caller, one.payment_id) for one in payments))
    except PaymentsUnavailableError:
        return Money(is_away=True)
    return Money(tuple(PaymentWithRefunds(*pair) for pair in zip(payments, refunds, strict=True)))


async def _no_money() -> Money:
    return Money()


def _to_order(order_id: str) -> Response:
    return RedirectResponse(f"{ROOT}/operator/orders/{order_id}", status_code=303)
