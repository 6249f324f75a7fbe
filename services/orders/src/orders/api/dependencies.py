"""What routes get from the application: the use cases, and the idempotency key of a request."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Header, Request

from orders.api.problem import INVALID_IDEMPOTENCY_KEY, MISSING_IDEMPOTENCY_KEY, ProblemError
from orders.service.close_order import CloseOrder
from orders.service.health import Health
from orders.service.place_order import PlaceOrder
from orders.service.products import AddProduct
from orders.service.queries import Queries

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class UseCases:
    """Everything that the routes can do."""

    place_order: PlaceOrder
    close_order: CloseOrder
    add_product: AddProduct
    queries: Queries
    health: Health


def _use_cases(request: Request) -> UseCases:
    return cast(UseCases, request.app.state.use_cases)


def _idempotency_key(
    idempotency_key: Annotated[
        str | None,
        Header(description="required; 1 to 255 visible ASCII characters, new for each new order", examples=["7f3d-1"]),
    ] = None,
) -> str:
    if idempotency_key is None:
        raise ProblemError(
            MISSING_IDEMPOTENCY_KEY, "send Idempotency-Key, and the same one again when you repeat the request"
        )
    if not _KEY.fullmatch(idempotency_key):
        raise ProblemError(INVALID_IDEMPOTENCY_KEY, "Idempotency-Key takes 1 to 255 visible ASCII characters")
    return idempotency_key


UseCasesOf = Annotated[UseCases, Depends(_use_cases)]
IdempotencyKey = Annotated[str, Depends(_idempotency_key)]
