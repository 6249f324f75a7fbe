"""GET /shop/: what is on sale; a seller puts products on sale there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import ValidationError

from orders.api.schemas import NewProduct
from orders.pages.money import NotAnAmountError, parse_amount
from orders.pages.page_errors import BadAmountError, BadFormError
from orders.pages.parts import PartsOf, VisitorOf, needs
from orders.pages.renderer import ROOT
from servicekit.api.schemas import ID_PATTERN, Cursor
from servicekit.auth import PRODUCTS_WRITE, Caller

router = APIRouter()

PRODUCTS_PER_PAGE = 24
FEW = 5  # from here on a buyer is told to hurry
CURRENCY = "CNY"  # the form's suggestion

Seller = Annotated[Caller, Depends(needs(PRODUCTS_WRITE))]


@router.get("/")
async def products(
    request: Request, parts: PartsOf, visitor: VisitorOf, cursor: Annotated[Cursor | None, Query()] = None
) -> Response:
    page = await parts.use_cases.queries.products(PRODUCTS_PER_PAGE, cursor)
    return parts.renderer.page(
        request,
        visitor,
        "products.html",
        page=page,
        few=FEW,
        is_first=cursor is None,
        may_sell=visitor.may(PRODUCTS_WRITE),
        currency=CURRENCY,
    )


@router.post("/products")
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
    try:
        new_product = NewProduct(
            product_id=product_id,
            name=name.strip(),
            price_minor=parse_amount(price, currency),
            currency=currency,
            available=available,
        )
    except NotAnAmountError as error:
        raise BadAmountError(str(error)) from None
    except ValidationError as error:
        raise BadFormError("; ".join(f"{found['loc'][0]}: {found['msg']}" for found in error.errors())) from None
    await parts.use_cases.add_product(new_product.to_product())
    return RedirectResponse(f"{ROOT}/", status_code=303)
