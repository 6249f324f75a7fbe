"""The operator's view: orders by state, dead letters, refunds, and one order with its history, traces and money.

Every command is for the version that the operator has seen: what has changed since is looked at first.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response

from orders.domain.order import TRANSITIONS, ChangeReason, OrderStatus
from orders.pages.buyer_pages import Key, OrderId
from orders.pages.language import NotAnAmountError, parse_amount
from orders.pages.parts import ROOT, BadAmountError, BadFormError, PageParts, PartsOf, VisitorOf, needs
from orders.service.payments import FAILED, PaymentsUnavailableError, PaymentView, RefundView, UnknownPaymentError
from orders.service.use_case import OrderFilter
from servicekit.auth import ORDERS_ALL, ORDERS_SHIP, PAYMENTS_ALL, REFUNDS_WRITE, Caller
from servicekit.http.parameters import Cursor
from servicekit.identifiers import ID_PATTERN, is_identifier

operator_router = APIRouter(prefix="/operator")

ORDERS_PER_PAGE = 50

Watcher = Annotated[Caller, Depends(needs(ORDERS_ALL))]
Treasurer = Annotated[Caller, Depends(needs(PAYMENTS_ALL))]
# Delivering a letter again may move money: it needs the scope for giving money back.
RefundOperator = Annotated[Caller, Depends(needs(REFUNDS_WRITE))]

# An empty field of a form is sent as an empty text: it is no wish.
Wish = Annotated[str, Query(max_length=64)]


@operator_router.get("")
async def orders_by_state(
    *,
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    _caller: Watcher,
    status: Wish = "",
    buyer: Wish = "",
    first_day: Annotated[str, Query(alias="from", max_length=10)] = "",
    last_day: Annotated[str, Query(alias="until", max_length=10)] = "",
    cursor: Annotated[Cursor | None, Query()] = None,
) -> Response:
    wishes = {"status": status, "buyer": buyer, "from": first_day, "until": last_day}
    queries = parts.use_cases.queries
    page = await queries.orders(_filter(status, buyer, first_day, last_day), ORDERS_PER_PAGE, cursor)
    return parts.renderer.page(
        request,
        visitor,
        "operator.html",
        page=page,
        is_first=cursor is None,
        statistics=await queries.statistics(),
        wishes=wishes,
        given={name: value for name, value in wishes.items() if value},
    )


@operator_router.get("/find")
async def find_order(_caller: Watcher, order_id: Annotated[str, Query(max_length=100)]) -> Response:
    if not is_identifier(order_id.strip()):
        raise BadFormError(f"{order_id!r} is not the id of an order")
    return RedirectResponse(f"{ROOT}/operator/orders/{order_id.strip()}", status_code=303)


@operator_router.get("/refunds")
async def refunds(
    *,
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    caller: Treasurer,
    status: Wish = "",
    cursor: Annotated[Cursor | None, Query()] = None,
) -> Response:
    """All refunds, or those that the gateway has rejected."""
    if status not in ("", FAILED):
        raise BadFormError(f"{status!r} is not a state by which refunds are listed")
    page = await parts.desk.refunds(caller, cursor, status or None)
    return parts.renderer.page(
        request,
        visitor,
        "refunds.html",
        page=page,
        is_first=cursor is None,
        given={"status": status} if status else {},
        may_refund=visitor.may(REFUNDS_WRITE),
    )


@operator_router.post("/refunds/retry")
async def retry_refund(
    parts: PartsOf,
    caller: RefundOperator,
    payment_id: Annotated[str, Form(pattern=ID_PATTERN)],
    refund_id: Annotated[str, Form(pattern=ID_PATTERN)],
) -> Response:
    await parts.desk.retry_refund(caller, payment_id, refund_id)
    return RedirectResponse(f"{ROOT}/operator/refunds?status={FAILED}", status_code=303)


@operator_router.get("/payments/{payment_id}")
async def order_of_payment(
    parts: PartsOf, caller: Treasurer, payment_id: Annotated[str, Path(pattern=ID_PATTERN)]
) -> Response:
    """The order that the payment is for."""
    payment = await parts.desk.payment(caller, payment_id)
    return RedirectResponse(f"{ROOT}/operator/orders/{payment.order_id}", status_code=303)


@operator_router.get("/dead-letters")
async def dead_letters(request: Request, parts: PartsOf, visitor: VisitorOf, _caller: Watcher) -> Response:
    groups = await parts.dead_letters.open_letters()
    return parts.renderer.page(
        request, visitor, "dead_letters.html", groups=groups, may_replay=visitor.may(REFUNDS_WRITE)
    )


@operator_router.post("/dead-letters/replay")
async def replay_dead_letter(
    parts: PartsOf,
    _caller: RefundOperator,
    group: Annotated[str, Form(pattern=ID_PATTERN)],
    letter_id: Annotated[str, Form(pattern=ID_PATTERN)],
) -> Response:
    await parts.dead_letters.replay(group, letter_id)
    return RedirectResponse(f"{ROOT}/operator/dead-letters", status_code=303)


def _filter(status: str, buyer: str, first_day: str, last_day: str) -> OrderFilter:
    """Raises BadFormError. Days are whole days of UTC, the last one included."""
    if status and status not in set(OrderStatus):
        raise BadFormError(f"{status!r} is not a state of an order")
    return OrderFilter(
        buyer_id=buyer.strip() or None,
        status=OrderStatus(status) if status else None,
        created_from_ms=_begin_ms(first_day, 0) if first_day else None,
        created_before_ms=_begin_ms(last_day, 1) if last_day else None,
    )


def _begin_ms(day: str, days_later: int) -> int:
    try:
        begin = date.fromisoformat(day) + timedelta(days=days_later)
    except (ValueError, OverflowError):
        raise BadFormError(f"{day!r} is not a day such as 2026-11-22") from None
    return int(datetime(begin.year, begin.month, begin.day, tzinfo=UTC).timestamp()) * 1000


operator_orders_router = APIRouter(prefix="/operator/orders/{order_id}")

REASON_PATTERN = r"^[^\x00-\x1f\x7f]*$"

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


@operator_orders_router.get("")
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


@operator_orders_router.post("/ship")
async def ship(parts: PartsOf, caller: Seller, order_id: OrderId, version: Version) -> Response:
    await parts.use_cases.ship_order(order_id, caller, version)
    return _to_order(order_id)


@operator_orders_router.post("/cancel")
async def cancel(parts: PartsOf, caller: Seller, order_id: OrderId, version: Version) -> Response:
    await parts.use_cases.close_order.cancel(order_id, caller, version)
    return _to_order(order_id)


@operator_orders_router.post("/refund")
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
