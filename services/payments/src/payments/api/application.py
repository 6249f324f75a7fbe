"""The FastAPI application over the use cases."""

from __future__ import annotations

from fastapi import FastAPI

from payments.api import operations, payments
from payments.api.dependencies import UseCases
from payments.api.problem import PROBLEM_OF_ERROR
from servicekit.api import application
from servicekit.health import Health


def build_api(use_cases: UseCases, health: Health) -> FastAPI:
    """The routes of payments, with all that servicekit gives a service's API."""
    app = application.build_api(
        title="Hourglass payments",
        summary="Payments that are captured once and told once",
        routers=(payments.router, operations.router),
        health=health,
        problem_of_error=PROBLEM_OF_ERROR,
    )
    app.state.use_cases = use_cases
    return app
