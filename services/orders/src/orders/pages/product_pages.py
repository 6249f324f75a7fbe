"""GET /shop/: what is on sale; a seller puts products on sale there, and changes them."""

from __future__ import annotations

from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Form, Path, Query, Request
from fastapi.responses import RedirectResponse, Response
from pydantic import ValidationError

from orders.api.schemas import STOCK_MAX, ChangedProduct, NewProduct
from orders.pages.language import NotAnAmountError, parse_amount
from orders.pages.parts import ROOT, BadAmountError, BadFormError, PageParts, PartsOf, VisitorOf, needs
from servicekit.auth import PRODUCTS_WRITE, Caller
from servicekit.http.parameters import ID_PATTERN, Cursor, RequestModel

router = APIRouter()

PRODUCTS_PER_PAGE = 24
FEW = 5  # from here on a buyer is told to hurry
CURRENCY = "CNY"  # the form's suggestion

M = TypeVar("M", bound=RequestModel)

Seller = Annotated[Caller, Depends(needs(PRODUCTS_WRITE))]


@router.get("/")
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


@router.post("/products/{product_id}")
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


@router.post("/products/{product_id}/sale")
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
