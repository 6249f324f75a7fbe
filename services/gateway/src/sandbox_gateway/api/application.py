"""The FastAPI application over the use cases."""

from __future__ import annotations

from fastapi import FastAPI

from osenv import Clock
from sandbox_gateway.api import charges, operations, refunds
from sandbox_gateway.api.dependencies import UseCases
from sandbox_gateway.api.problem import PROBLEM_OF_ERROR
from servicekit.api import application
from servicekit.health import Health

# The health of whoever takes money through this gateway is asked for every few seconds, and asks for the book.
BOOK_URL = "/v1/book"


def build_api(use_cases: UseCases, health: Health, clock: Clock) -> FastAPI:
    """The routes of the gateway, with all that servicekit gives a service's API."""
    app = application.build_api(
        title="Hourglass sandbox gateway",
        summary="Takes money that is not real, gives it back, and tells by webhooks",
        routers=(charges.router, refunds.router, operations.router),
        health=health,
        problem_of_error=PROBLEM_OF_ERROR,
        tokens=None,  # an API key instead: one program asks, and no people
        rate_limit=None,
        clock=clock,
        untraced_urls=(*application.UNTRACED_URLS, BOOK_URL),
    )
    app.state.use_cases = use_cases
    return app
