"""The routes of products. Reading them needs no token: a shop shows what it sells."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Response

from orders.api import problem
from orders.api.dependencies import UseCasesOf
from orders.api.schemas import ChangedProduct, NewProduct, ProductAnswer, ProductPage
from servicekit.auth import PRODUCTS_WRITE
from servicekit.http import problem as common
from servicekit.http.middleware import requires
from servicekit.http.parameters import ID_PATTERN, LOCATION_HEADER, PAGE_DEFAULT, Cursor, Limit
from servicekit.http.problem import documented

router = APIRouter(prefix="/products", tags=["products"])

ProductId = Annotated[str, Path(pattern=ID_PATTERN, examples=["seat-12A"])]


@router.post(
    "",
    status_code=201,
    summary="Put a product on sale",
    response_description="The product is on sale",
    dependencies=[Depends(requires(PRODUCTS_WRITE))],
    responses={
        201: {"headers": LOCATION_HEADER},
        **documented(
            problem.PRODUCT_EXISTS,
            common.INVALID_REQUEST,
            common.MALFORMED_REQUEST,
            common.BODY_TOO_LARGE,
            common.STORAGE_UNAVAILABLE,
        ),
    },
)
async def add_product(new_product: NewProduct, use_cases: UseCasesOf, response: Response) -> ProductAnswer:
    """Its id, name and currency stay as they are given; price and stock can be changed."""
    product = await use_cases.add_product(new_product.to_product())
    response.headers["Location"] = f"/products/{product.product_id}"
    return ProductAnswer.of(product)


@router.patch(
    "/{product_id}",
    summary="Change a product's price or stock, or end its sale",
    response_description="The product, as the request wants it",
    dependencies=[Depends(requires(PRODUCTS_WRITE))],
    responses=documented(
        problem.UNKNOWN_PRODUCT,
        problem.PRODUCT_CHANGED,
        problem.UNITS_IN_ORDERS,
        common.INVALID_REQUEST,
        common.MALFORMED_REQUEST,
        common.BODY_TOO_LARGE,
        common.STORAGE_UNAVAILABLE,
    ),
)
async def change_product(product_id: ProductId, wanted: ChangedProduct, use_cases: UseCasesOf) -> ProductAnswer:
    """What is left out stays as it is. An order keeps the price that it was placed at, and its units; a product whose
    sale has ended is ordered no more, and can be put on sale again.

    The request can be sent again: a product that is as it wants is answered as it is. With `version` it is carried out
    on that version or not at all."""
    return ProductAnswer.of(await use_cases.change_product(product_id, wanted.to_change()))


@router.get(
    "",
    summary="List products by id",
    responses=documented(common.INVALID_REQUEST, common.INVALID_CURSOR, common.STORAGE_UNAVAILABLE),
)
async def list_products(
    use_cases: UseCasesOf,
    limit: Annotated[Limit, Query()] = PAGE_DEFAULT,
    cursor: Annotated[Cursor | None, Query()] = None,
    is_on_sale: Annotated[bool | None, Query(description="those that are on sale, or those that are not")] = None,
) -> ProductPage:
    """In pages: `next_cursor` of one is `cursor` of the next, and null on the last."""
    return ProductPage.of(await use_cases.queries.products(limit, cursor, is_on_sale=is_on_sale))


@router.get(
    "/{product_id}",
    summary="One product and its stock",
    responses=documented(problem.UNKNOWN_PRODUCT, common.INVALID_REQUEST, common.STORAGE_UNAVAILABLE),
)
async def get_product(product_id: ProductId, use_cases: UseCasesOf) -> ProductAnswer:
    """Units are available, reserved by orders that wait for their payment, or sold."""
    return ProductAnswer.of(await use_cases.queries.product(product_id))
