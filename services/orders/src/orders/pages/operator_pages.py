"""The operator's view: orders by state, dead letters, refunds. One order is in operator_order_pages.py."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response

from orders.domain.order import OrderStatus
from orders.pages.parts import ROOT, BadFormError, PartsOf, VisitorOf, needs
from orders.service.payment_desk import FAILED
from orders.service.unit_of_work import OrderFilter
from servicekit.auth import ORDERS_ALL, PAYMENTS_ALL, REFUNDS_WRITE, Caller
from servicekit.http.parameters import ID_PATTERN, Cursor
from servicekit.identifiers import is_identifier

router = APIRouter(prefix="/operator")

ORDERS_PER_PAGE = 50

Watcher = Annotated[Caller, Depends(needs(ORDERS_ALL))]
Treasurer = Annotated[Caller, Depends(needs(PAYMENTS_ALL))]
# Delivering a letter again may move money: it is for those who may give some back.
Mender = Annotated[Caller, Depends(needs(REFUNDS_WRITE))]

# An empty field of a form is sent as an empty text: it is no wish.
Wish = Annotated[str, Query(max_length=64)]


@router.get("")
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


@router.get("/find")
async def find_order(_caller: Watcher, order_id: Annotated[str, Query(max_length=100)]) -> Response:
    if not is_identifier(order_id.strip()):
        raise BadFormError(f"{order_id!r} is not the id of an order")
    return RedirectResponse(f"{ROOT}/operator/orders/{order_id.strip()}", status_code=303)


@router.get("/refunds")
async def refunds(
    *,
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    caller: Treasurer,
    status: Wish = "",
    cursor: Annotated[Cursor | None, Query()] = None,
) -> Response:
    """All refunds, or those that the gateway has refused."""
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


@router.post("/refunds/retry")
async def retry_refund(
    parts: PartsOf,
    caller: Mender,
    payment_id: Annotated[str, Form(pattern=ID_PATTERN)],
    refund_id: Annotated[str, Form(pattern=ID_PATTERN)],
) -> Response:
    await parts.desk.retry_refund(caller, payment_id, refund_id)
    return RedirectResponse(f"{ROOT}/operator/refunds?status={FAILED}", status_code=303)


@router.get("/payments/{payment_id}")
async def order_of_payment(
    parts: PartsOf, caller: Treasurer, payment_id: Annotated[str, Path(pattern=ID_PATTERN)]
) -> Response:
    """The order that the payment is for."""
    payment = await parts.desk.payment(caller, payment_id)
    return RedirectResponse(f"{ROOT}/operator/orders/{payment.order_id}", status_code=303)


@router.get("/dead-letters")
async def dead_letters(request: Request, parts: PartsOf, visitor: VisitorOf, _caller: Watcher) -> Response:
    groups = await parts.dead_letters.open_letters()
    return parts.renderer.page(
        request, visitor, "dead_letters.html", groups=groups, may_replay=visitor.may(REFUNDS_WRITE)
    )


@router.post("/dead-letters/replay")
async def replay_dead_letter(
    parts: PartsOf,
    _caller: Mender,
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
