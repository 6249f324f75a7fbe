"""The FastAPI application over the use cases."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import APIRouter, FastAPI

from orders.api import operations, products
from orders.api.dependencies import UseCases
from orders.api.orders import commands_router, holds_router, orders_router
from orders.api.problem import PROBLEM_OF_ERROR
from orders.api.shop_problem import STREAM_PROBLEM_OF_ERROR
from osenv import Clock
from servicekit.auth import Tokens
from servicekit.http import application
from servicekit.http.limits import AdmissionLimit, RateLimit
from servicekit.http.middleware import Identify, identified
from servicekit.monitoring import Health


def build_api(
    use_cases: UseCases,
    health: Health,
    *,
    tokens: Tokens,
    rate_limit: RateLimit | None,
    clock: Clock,
    admission_limit: AdmissionLimit | None = None,
    identify: Identify = identified,
    more_routers: Iterable[APIRouter] = (),
) -> FastAPI:
    """The routes of orders and `more_routers`, with all that servicekit gives a service's API.

    `rate_limit` is for each of those whom `identify` finds.
    """
    app = application.build_api(
        title="Hourglass orders",
        summary="Orders that close by themselves when nobody pays",
        routers=(
            products.router,
            orders_router,
            commands_router,
            holds_router,
            operations.router,
            *more_routers,
        ),
        health=health,
        problem_of_error={**PROBLEM_OF_ERROR, **STREAM_PROBLEM_OF_ERROR},
        tokens=tokens,
        rate_limit=rate_limit,
        clock=clock,
        admission_limit=admission_limit,
        identify=identify,
    )
    app.state.use_cases = use_cases
    return app
