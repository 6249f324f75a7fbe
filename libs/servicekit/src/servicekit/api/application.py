"""The FastAPI application of a service, with what all of them have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fastapi import APIRouter, FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor

from servicekit.api import problem_handlers
from servicekit.api.body_limit import BodyLimit
from servicekit.api.health_routes import health_routes
from servicekit.api.problem import Problem, ProblemType
from servicekit.errors import ServiceError
from servicekit.health import Health


class ServiceApi(FastAPI):
    """FastAPI with the schema of problems in its OpenAPI document."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            schema = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas = document["components"]["schemas"]
            schemas |= schema.pop("$defs")
            schemas["Problem"] = schema
        return super().openapi()


def build_api(
    *,
    title: str,
    summary: str,
    routers: Iterable[APIRouter],
    health: Health,
    problem_of_error: Mapping[type[ServiceError], ProblemType],
) -> ServiceApi:
    """The routes and /health, with problems for errors, a limit on bodies, and a span for each request.

    `problem_of_error` has the service's own errors; those of servicekit.errors are known.
    """
    app = ServiceApi(title=title, version="0.1.0", summary=summary)
    for router in routers:
        app.include_router(router)
    app.include_router(health_routes(health))
    app.add_middleware(BodyLimit)
    problem_handlers.install(app, problem_of_error)
    FastAPIInstrumentor.instrument_app(app, excluded_urls="/health/.*", exclude_spans=["receive", "send"])
    return app
