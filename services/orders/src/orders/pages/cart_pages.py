"""The cart, and placing an order of what it holds.

The order is of what the form shows and not of what the cookie says by then, at the total that it shows or not at all:
what a buyer has seen is what he orders.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Request
from fastapi.responses import RedirectResponse, Response

from orders.api.schemas import LINES_MAX, QUANTITY_MAX
from orders.domain.order import Order
from orders.pages.cart import Cart, is_quantity, parse_cart
from orders.pages.parts import ROOT, BadFormError, PageParts, PartsOf, VisitorOf, needs
from orders.pages.visitor import keep_cart
from orders.service.place_order import OrderRequest
from servicekit.auth import ORDERS_WRITE, Caller
from servicekit.errors import RequestInFlightError
from servicekit.http.parameters import ID_PATTERN

router = APIRouter()

# A double click asks twice at once: the second one waits for what the first one makes.
IN_FLIGHT_WAIT_S = 0.1
IN_FLIGHT_TRIES = 50

CART_TEXT_MAX = 4_000
KEY_PATTERN = r"^[0-9a-f]{32}$"

ProductId = Annotated[str, Form(pattern=ID_PATTERN)]
Key = Annotated[str, Form(pattern=KEY_PATTERN)]
Buyer = Annotated[Caller, Depends(needs(ORDERS_WRITE))]


@router.get("/cart")
async def show_cart(request: Request, parts: PartsOf, visitor: VisitorOf) -> Response:
    basket = await parts.baskets.price(visitor.cart.lines)
    return parts.renderer.page(
        request, visitor, "cart.html", basket=basket, key=parts.new_key(), quantity_max=QUANTITY_MAX
    )


@router.post("/cart/add")
async def add_to_cart(
    request: Request,
    visitor: VisitorOf,
    product_id: ProductId,
    quantity: Annotated[int, Form(ge=1, le=QUANTITY_MAX)] = 1,
) -> Response:
    return _to_cart(request, visitor.cart.with_more(product_id, quantity))


@router.post("/cart/remove")
async def remove_from_cart(request: Request, visitor: VisitorOf, product_id: ProductId) -> Response:
    return _to_cart(request, visitor.cart.with_quantity(product_id, 0))


@router.post("/cart/update")
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


@router.post("/orders")
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
    """The order of this form, whichever of its requests was first. Raises what PlaceOrder raises."""
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
