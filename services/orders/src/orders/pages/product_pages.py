"""GET /shop/: what is on sale."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from orders.pages.parts import PartsOf, VisitorOf
from servicekit.api.schemas import Cursor

router = APIRouter()

PRODUCTS_PER_PAGE = 24
FEW = 5  # from here on a buyer is told to hurry


@router.get("/")
async def products(
    request: Request, parts: PartsOf, visitor: VisitorOf, cursor: Annotated[Cursor | None, Query()] = None
) -> Response:
    page = await parts.use_cases.queries.products(PRODUCTS_PER_PAGE, cursor)
    return parts.renderer.page(request, visitor, "products.html", page=page, few=FEW, is_first=cursor is None)
