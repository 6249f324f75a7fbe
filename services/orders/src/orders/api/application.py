"""The FastAPI application over the use cases."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

from orders.api import operations, orders, problem_handlers, products
from orders.api.body_limit import BodyLimit
from orders.api.dependencies import UseCases
from orders.api.problem import Problem


class OrdersApi(FastAPI):
    """FastAPI with the schema of problems in its OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas = document["components"]["schemas"]
            schemas |= schema.pop("$defs")
            schemas["Problem"] = schema
        return super().openapi()


def build_api(use_cases: UseCases) -> FastAPI:
    """The routes, with problems for errors and a span for each request."""
    app = OrdersApi(
        title="Hourglass orders",
        version="0.1.0",
        summary="Orders that close by themselves when nobody pays",
    )
    app.state.use_cases = use_cases
    app.include_router(products.router)
    app.include_router(orders.router)
    app.include_router(operations.router)
    app.add_middleware(BodyLimit)
    problem_handlers.install(app)
    FastAPIInstrumentor.instrument_app(app, excluded_urls="/health/.*", exclude_spans=["receive", "send"])
    return app
