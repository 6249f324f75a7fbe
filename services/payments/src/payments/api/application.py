"""The FastAPI application over the use cases."""

from __future__ import annotations

from fastapi import FastAPI

from osenv import Clock
from payments.api import operations, payable_orders, payments, refunds, webhooks
from payments.api.dependencies import UseCases
from payments.api.problem import PROBLEM_OF_ERROR
from servicekit.auth import Tokens
from servicekit.http import application
from servicekit.http.limits import AdmissionLimit, RateLimit
from servicekit.monitoring import Health


def build_api(
    use_cases: UseCases,
    health: Health,
    *,
    tokens: Tokens,
    rate_limit: RateLimit | None,
    clock: Clock,
    admission_limit: AdmissionLimit | None = None,
) -> FastAPI:
    """The routes of payments, with all that servicekit gives a service's API."""
    app = application.build_api(
        title="Hourglass payments",
        summary="Payments that are captured once and told once",
        routers=(payments.router, refunds.router, payable_orders.router, webhooks.router, operations.router),
        health=health,
        problem_of_error=PROBLEM_OF_ERROR,
        tokens=tokens,
        rate_limit=rate_limit,
        clock=clock,
        admission_limit=admission_limit,
    )
    app.state.use_cases = use_cases
    return app
