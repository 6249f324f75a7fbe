"""The FastAPI application over the use cases."""

from __future__ import annotations

from fastapi import FastAPI

from orders.api import operations, orders, products
from orders.api.dependencies import UseCases
from orders.api.problem import PROBLEM_OF_ERROR
from servicekit.api import application
from servicekit.health import Health


def build_api(use_cases: UseCases, health: Health) -> FastAPI:
    """The routes of orders, with all that servicekit gives a service's API."""
    app = application.build_api(
        title="Hourglass orders",
        summary="Orders that close by themselves when nobody pays",
        routers=(products.router, orders.router, operations.router),
        health=health,
        problem_of_error=PROBLEM_OF_ERROR,
    )
    app.state.use_cases = use_cases
    return app
