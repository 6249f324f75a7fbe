"""A buyer's orders: the list, one order as it changes, paying, cancelling, confirming."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response

from orders.api.order_events import OrderEventsResponse
from orders.domain.order import OrderStatus
from orders.pages.cart_pages import Key
from orders.pages.language import remaining_seconds
from orders.pages.parts import ROOT, PageParts, PartsOf, UnknownMethodError, VisitorOf, needs
from orders.service.payment_desk import DECLINED, OrderToPay, PaymentRefusedError, PaymentsUnavailableError, PaymentView
from orders.service.unit_of_work import OrderFilter
from servicekit.auth import ORDERS_READ, ORDERS_WRITE, PAYMENTS_WRITE, Caller
from servicekit.http.parameters import ID_PATTERN, Cursor

router = APIRouter(prefix="/orders")

ORDERS_PER_PAGE = 20
PAYMENT_DECLINED = "payment-declined"
METHOD_PATTERN = r"^[a-z][a-z_-]{0,30}$"

OrderId = Annotated[str, Path(pattern=ID_PATTERN)]
Reader = Annotated[Caller, Depends(needs(ORDERS_READ))]
Buyer = Annotated[Caller, Depends(needs(ORDERS_WRITE))]
Payer = Annotated[Caller, Depends(needs(PAYMENTS_WRITE))]


@dataclass(frozen=True, slots=True)
class PayBox:
    """How an order that waits for its payment can be paid now.

    `latest` is the last try; while it is not declined, there is nothing to choose. `is_away`: payments does not answer.
    """

    methods: tuple[str, ...] = ()
    latest: PaymentView | None = None
    is_away: bool = False

    @property
    def is_in_progress(self) -> bool:
        """Also once the money is taken: the order learns of it in a moment."""
        return self.latest is not None and self.latest.status != DECLINED

    @property
    def is_declined(self) -> bool:
        return self.latest is not None and self.latest.status == DECLINED


@router.get("")
async def list_orders(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    caller: Reader,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> Response:
    page = await parts.use_cases.queries.orders(OrderFilter(buyer_id=caller.subject), ORDERS_PER_PAGE, cursor)
    return parts.renderer.page(request, visitor, "orders.html", page=page, is_first=cursor is None)


@router.get("/{order_id}")
async def show_order(
    request: Request, parts: PartsOf, visitor: VisitorOf, caller: Reader, order_id: OrderId
) -> Response:
    order = await parts.use_cases.queries.order(order_id, caller)
    is_pending = order.status is OrderStatus.PENDING_PAYMENT
    is_buyer = order.buyer_id == caller.subject
    history, products, box = await asyncio.gather(
        parts.use_cases.queries.history(order_id, caller),
        parts.baskets.products([line.product_id for line in order.lines]),
        _pay_box(parts, caller, order_id) if is_pending and is_buyer else _no_pay_box(),
    )
    return parts.renderer.page(
        request,
        visitor,
        "order.html",
        order=order,
        is_buyer=is_buyer,
        is_pending=is_pending,
        history=history,
        products=products,
        box=box,
        seconds=remaining_seconds(order.expires_at_ms, parts.clock.wall_ms()),
        key=parts.new_key(),
    )


@router.get("/{order_id}/events")
async def follow_order(parts: PartsOf, caller: Reader, order_id: OrderId) -> OrderEventsResponse:
    """As the route of the API, for whoever is signed in here."""
    return OrderEventsResponse(await parts.feed.open(order_id, caller), parts.clock)


@router.post("/{order_id}/pay")
async def pay(
    parts: PartsOf,
    caller: Payer,
    order_id: OrderId,
    method: Annotated[str, Form(pattern=METHOD_PATTERN)],
    key: Key,
) -> Response:
    """The amount is the order's: no form says how much is paid."""
    order = await parts.use_cases.queries.order(order_id, caller)
    if method not in await parts.desk.methods(caller):
        raise UnknownMethodError(f"{method!r} is no way to pay here")
    try:
        await parts.desk.pay(caller, OrderToPay(order.order_id, order.total_minor, order.currency), method, key)
    except PaymentRefusedError as error:
        # The page of the order says that it was declined, and lets the buyer try again.
        if error.problem != PAYMENT_DECLINED:
            raise
    return _to_order(order_id)


@router.post("/{order_id}/cancel")
async def cancel(parts: PartsOf, caller: Buyer, order_id: OrderId) -> Response:
    await parts.use_cases.close_order.cancel(order_id, caller, None)
    return _to_order(order_id)


@router.post("/{order_id}/confirm")
async def confirm(parts: PartsOf, caller: Buyer, order_id: OrderId) -> Response:
    await parts.use_cases.confirm_receipt(order_id, caller, None)
    return _to_order(order_id)


async def _pay_box(parts: PageParts, caller: Caller, order_id: str) -> PayBox:
    """Never fails: an order can be looked at, and cancelled, while payments is away."""
    try:
        methods, payments = await asyncio.gather(parts.desk.methods(caller), parts.desk.payments_of(caller, order_id))
    except (PaymentsUnavailableError, PaymentRefusedError):
        return PayBox(is_away=True)
    return PayBox(methods, payments[0] if payments else None)


async def _no_pay_box() -> PayBox:
    return PayBox()


def _to_order(order_id: str) -> Response:
    return RedirectResponse(f"{ROOT}/orders/{order_id}", status_code=303)
