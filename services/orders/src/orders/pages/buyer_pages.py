"""What is on sale, the cart, and a buyer's orders; a seller puts products on sale here, and changes them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import ValidationError

from orders.api.application import OrderEventsResponse
from orders.api.schemas import LINES_MAX, QUANTITY_MAX, STOCK_MAX, ChangedProduct, NewProduct
from orders.domain.order import Order, OrderStatus
from orders.pages.language import NotAnAmountError, parse_amount, remaining_seconds
from orders.pages.parts import (
    ROOT,
    BadAmountError,
    BadFormError,
    PageParts,
    PartsOf,
    UnknownMethodError,
    VisitorOf,
    needs,
)
from orders.pages.visitor import Cart, is_quantity, keep_cart, parse_cart
from orders.service.payments import DECLINED, OrderToPay, PaymentRejectedError, PaymentsUnavailableError, PaymentView
from orders.service.place_order import OrderRequest
from orders.service.use_case import OrderFilter
from servicekit.auth import ORDERS_READ, ORDERS_WRITE, PAYMENTS_WRITE, PRODUCTS_WRITE, Caller
from servicekit.errors import RequestInFlightError
from servicekit.http.middleware import leave_place
from servicekit.http.parameters import Cursor, RequestModel
from servicekit.identifiers import ID_PATTERN

products_router = APIRouter()

PRODUCTS_PER_PAGE = 24
FEW = 5  # from here on a buyer is told to hurry
CURRENCY = "CNY"  # the form's suggestion

M = TypeVar("M", bound=RequestModel)

Seller = Annotated[Caller, Depends(needs(PRODUCTS_WRITE))]


@products_router.get("/")
async def products(
    request: Request, parts: PartsOf, visitor: VisitorOf, cursor: Annotated[Cursor | None, Query()] = None
) -> Response:
    may_sell = visitor.may(PRODUCTS_WRITE)
    # A seller sees the ended sales too, and can begin them again.
    page = await parts.use_cases.queries.products(PRODUCTS_PER_PAGE, cursor, is_on_sale=None if may_sell else True)
    return parts.renderer.page(
        request,
        visitor,
        "products.html",
        page=page,
        few=FEW,
        is_first=cursor is None,
        may_sell=may_sell,
        may_choose_anybody=parts.may_choose_anybody,
        token_command=parts.token_command,
        window_s=parts.payment_window_ms // 1000,
        currency=CURRENCY,
    )


@products_router.post("/products")
async def put_on_sale(
    *,
    parts: PartsOf,
    _caller: Seller,
    product_id: Annotated[str, Form(pattern=ID_PATTERN)],
    name: Annotated[str, Form(max_length=200)],
    price: Annotated[str, Form(max_length=40)],
    currency: Annotated[str, Form(pattern="^[A-Z]{3}$")],
    available: Annotated[int, Form()],
) -> Response:
    """Put a product on sale; its page is the list. Raises BadAmountError, BadFormError, ProductExistsError."""
    new_product = _checked(
        NewProduct,
        product_id=product_id,
        name=name.strip(),
        price_minor=_amount(price, currency),
        currency=currency,
        available=available,
    )
    await parts.use_cases.add_product(new_product.to_product())
    return RedirectResponse(f"{ROOT}/", status_code=303)


@products_router.post("/products/{product_id}")
async def change_product(
    *,
    parts: PartsOf,
    _caller: Seller,
    product_id: Annotated[str, Path(pattern=ID_PATTERN)],
    price: Annotated[str, Form(max_length=40)],
    more: Annotated[int, Form(ge=-STOCK_MAX, le=STOCK_MAX)],
    total: Annotated[int, Form(ge=0, le=STOCK_MAX)],
    version: Annotated[int, Form(ge=1)],
) -> Response:
    """Change price and stock as the form shows them: `more` units than the `total` that the seller has seen.

    Raises BadAmountError, BadFormError, UnknownProductError, ProductChangedError, UnitsInOrdersError.
    """
    product = await parts.use_cases.queries.product(product_id)
    price_minor = _amount(price, product.currency)
    wanted = _checked(ChangedProduct, price_minor=price_minor, total=total + more, version=version)
    return await _change(parts, product_id, wanted)


@products_router.post("/products/{product_id}/sale")
async def change_sale(
    *,
    parts: PartsOf,
    _caller: Seller,
    product_id: Annotated[str, Path(pattern=ID_PATTERN)],
    is_on_sale: Annotated[bool, Form()],
) -> Response:
    """End the sale of a product, or begin it again. Raises UnknownProductError."""
    return await _change(parts, product_id, ChangedProduct(is_on_sale=is_on_sale))


async def _change(parts: PageParts, product_id: str, wanted: ChangedProduct) -> Response:
    await parts.use_cases.change_product(product_id, wanted.to_change())
    return RedirectResponse(f"{ROOT}/", status_code=303)


def _amount(price: str, currency: str) -> int:
    try:
        return parse_amount(price, currency)
    except NotAnAmountError as error:
        raise BadAmountError(str(error)) from None


def _checked(model: type[M], **members: object) -> M:
    """The model that the API reads, of a form's fields. Raises BadFormError."""
    try:
        return model.model_validate(members)
    except ValidationError as error:
        raise BadFormError("; ".join(f"{found['loc'][0]}: {found['msg']}" for found in error.errors())) from None


cart_router = APIRouter()

# A double click asks twice at once: the second one waits for what the first one makes.
IN_FLIGHT_WAIT_S = 0.1
IN_FLIGHT_TRIES = 50

CART_TEXT_MAX = 4_000
KEY_PATTERN = r"^[0-9a-f]{32}$"

ProductId = Annotated[str, Form(pattern=ID_PATTERN)]
Key = Annotated[str, Form(pattern=KEY_PATTERN)]
Buyer = Annotated[Caller, Depends(needs(ORDERS_WRITE))]


@cart_router.get("/cart")
async def show_cart(request: Request, parts: PartsOf, visitor: VisitorOf) -> Response:
    basket = await parts.baskets.price(visitor.cart.lines)
    return parts.renderer.page(
        request, visitor, "cart.html", basket=basket, key=parts.new_key(), quantity_max=QUANTITY_MAX
    )


@cart_router.post("/cart/add")
async def add_to_cart(
    request: Request,
    visitor: VisitorOf,
    product_id: ProductId,
    quantity: Annotated[int, Form(ge=1, le=QUANTITY_MAX)] = 1,
) -> Response:
    return _to_cart(request, visitor.cart.with_more(product_id, quantity))


@cart_router.post("/cart/remove")
async def remove_from_cart(request: Request, visitor: VisitorOf, product_id: ProductId) -> Response:
    return _to_cart(request, visitor.cart.with_quantity(product_id, 0))


@cart_router.post("/cart/update")
async def update_cart(
    request: Request,
    visitor: VisitorOf,
    product_id: Annotated[list[str], Form(max_length=LINES_MAX)],
    quantity: Annotated[list[str], Form(max_length=LINES_MAX)],
) -> Response:
    """All quantities at once, as they stand in the table; 0 takes a product out."""
    cart = visitor.cart
    for one, wanted in zip(product_id, quantity, strict=False):
        if not is_quantity(wanted):
            raise BadFormError(f"{wanted!r} is not a quantity from 0 to {QUANTITY_MAX}")
        cart = cart.with_quantity(one, int(wanted))
    return _to_cart(request, cart)


@cart_router.post("/orders")
async def place_order(
    *,
    request: Request,
    parts: PartsOf,
    caller: Buyer,
    items: Annotated[str, Form(min_length=1, max_length=CART_TEXT_MAX)],
    key: Key,
    total: Annotated[int | None, Form(ge=0)] = None,
) -> Response:
    cart = parse_cart(items)
    if not cart.lines:
        raise BadFormError("the cart is empty")
    order = await _place(parts, OrderRequest(caller.subject, cart.lines), key, total)
    response = RedirectResponse(f"{ROOT}/orders/{order.order_id}", status_code=303)
    keep_cart(request, response, Cart())
    return response


async def _place(parts: PageParts, wanted: OrderRequest, key: str, total_minor: int | None) -> Order:
    """The order of this form, whichever of its requests was first. Raises what PlaceOrder raises.

    The order is of what the form shows and not of what the cookie says by then, at the total that it shows or not at
    all: what buyers have seen is what they order.
    """
    for _ in range(IN_FLIGHT_TRIES):
        try:
            return (await parts.use_cases.place_order(wanted, key, expected_total_minor=total_minor)).order
        except RequestInFlightError:
            await parts.clock.sleep(IN_FLIGHT_WAIT_S)
    raise RequestInFlightError(key)


def _to_cart(request: Request, cart: Cart) -> Response:
    response = RedirectResponse(f"{ROOT}/cart", status_code=303)
    keep_cart(request, response, cart)
    return response


orders_router = APIRouter(prefix="/orders")

ORDERS_PER_PAGE = 20
PAYMENT_DECLINED = "payment-declined"
METHOD_PATTERN = r"^[a-z][a-z_-]{0,30}$"

OrderId = Annotated[str, Path(pattern=ID_PATTERN)]
Reader = Annotated[Caller, Depends(needs(ORDERS_READ))]
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


@orders_router.get("")
async def list_orders(
    request: Request,
    parts: PartsOf,
    visitor: VisitorOf,
    caller: Reader,
    cursor: Annotated[Cursor | None, Query()] = None,
) -> Response:
    page = await parts.use_cases.queries.orders(OrderFilter(buyer_id=caller.subject), ORDERS_PER_PAGE, cursor)
    return parts.renderer.page(request, visitor, "orders.html", page=page, is_first=cursor is None)


@orders_router.get("/{order_id}")
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


@orders_router.get("/{order_id}/events")
async def follow_order(parts: PartsOf, caller: Reader, order_id: OrderId) -> OrderEventsResponse:
    """As the route of the API, for the visitor who is signed in here."""
    return OrderEventsResponse(await parts.feed.open(order_id, caller), parts.clock)


@orders_router.post("/{order_id}/pay")
async def pay(
    parts: PartsOf,
    caller: Payer,
    order_id: OrderId,
    method: Annotated[str, Form(pattern=METHOD_PATTERN)],
    key: Key,
    *,
    request: Request,
) -> Response:
    """The amount is the order's: no form says how much is paid.

    Payments waits for its gateway, and buyers who wait for both keep no others from ordering meanwhile.
    """
    order = await parts.use_cases.queries.order(order_id, caller)
    if method not in await parts.desk.methods(caller):
        raise UnknownMethodError(f"{method!r} is no way to pay here")
    leave_place(request.scope)
    try:
        await parts.desk.pay(caller, OrderToPay(order.order_id, order.total_minor, order.currency), method, key)
    except PaymentRejectedError as error:
        # The page of the order says that it was declined, and lets the buyer try again.
        if error.problem != PAYMENT_DECLINED:
            raise
    return _to_order(order_id)


@orders_router.post("/{order_id}/cancel")
async def cancel(parts: PartsOf, caller: Buyer, order_id: OrderId) -> Response:
    await parts.use_cases.close_order.cancel(order_id, caller, None)
    return _to_order(order_id)


@orders_router.post("/{order_id}/confirm")
async def confirm(parts: PartsOf, caller: Buyer, order_id: OrderId) -> Response:
    await parts.use_cases.confirm_receipt(order_id, caller, None)
    return _to_order(order_id)


async def _pay_box(parts: PageParts, caller: Caller, order_id: str) -> PayBox:
    """Never fails: an order can be looked at, and cancelled, while payments is away."""
    try:
        methods, payments = await asyncio.gather(parts.desk.methods(caller), parts.desk.payments_of(caller, order_id))
    except (PaymentsUnavailableError, PaymentRejectedError):
        return PayBox(is_away=True)
    return PayBox(methods, payments[0] if payments else None)


async def _no_pay_box() -> PayBox:
    return PayBox()


def _to_order(order_id: str) -> Response:
    return RedirectResponse(f"{ROOT}/orders/{order_id}", status_code=303)
