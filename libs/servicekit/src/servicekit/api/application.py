"""The FastAPI application of a service, with what all of them have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from starlette.types import ASGIApp

import telemetry
from osenv import Clock
from servicekit.admission import Admission, AdmissionLimit
from servicekit.api import health_routes, openapi, problem_handlers
from servicekit.api.problem import ProblemType
from servicekit.api.request_limits import BodyLimit, LoadShedding, RequestLimit
from servicekit.api.request_telemetry import IsUntraced, TraceIds, request_telemetry, untraced
from servicekit.api.security import Identification, Identify, TokensFirst, identified
from servicekit.auth import Tokens
from servicekit.errors import ServiceError
from servicekit.health import Health
from servicekit.rate_limit import RateLimit, RequestCounter

VERSION = "0.1.0"
# Whoever watches the service asks every second: a span of each would hide the others.
UNTRACED_URLS = ("/health/live", "/health/ready")

_TAGS = [
    {"name": "products", "description": "What is on sale, and where its units are."},
    {"name": "orders", "description": "Orders, from their placing to their completion."},
    {"name": "payments", "description": "Money that buyers pay, and that goes back to them."},
    {"name": "webhooks", "description": "What the payment gateway tells; its requests are signed."},
    {"name": "operations", "description": "For those who run the service."},
]


class ServiceApi(FastAPI):
    """FastAPI with an OpenAPI document that says all that holds for every route, and with a trace for each request."""

    is_untraced: IsUntraced

    def build_middleware_stack(self) -> ASGIApp:
        """Outside of everything: an error that nobody has expected is answered within the trace as well."""
        stack = super().build_middleware_stack()
        return stack if telemetry.is_tracing() else TraceIds(stack, self.is_untraced)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            openapi.complete(document, self._models())
            used = {tag for path in document["paths"].values() for one in path.values() for tag in one.get("tags", ())}
            document["tags"] = [tag for tag in _TAGS if tag["name"] in used]
        return super().openapi()

    def _models(self) -> Iterator[type[BaseModel]]:
        for context in iter_route_contexts(self.routes):
            route = context.original_route
            if isinstance(route, APIRoute):
                answers = [route.response_model, *(answer.get("model") for answer in route.responses.values())]
                taken = None if route.body_field is None else route.body_field.field_info.annotation
                for model in (taken, *answers):
                    if isinstance(model, type) and issubclass(model, BaseModel):
                        yield model


def build_api(
    *,
    title: str,
    summary: str,
    routers: Iterable[APIRouter],
    health: Health,
    problem_of_error: Mapping[type[ServiceError], ProblemType],
    tokens: Tokens | None,
    rate_limit: RateLimit | None,
    clock: Clock,
    untraced_urls: Sequence[str] = UNTRACED_URLS,
    admission_limit: AdmissionLimit | None = None,
    identify: Identify = identified,
) -> ServiceApi:
    """The routes and /health, with problems for errors, callers, limits on bodies and requests, and spans.

    `problem_of_error` has the service's own errors; those of servicekit.errors are known. `rate_limit` None is none,
    and so is `admission_limit`, beyond which requests are told to come back later. `rate_limit` is for each of those
    whom `identify` finds.
    Whoever asks for one of `untraced_urls`, which are paths, gets no trace.
    Without `tokens` nobody is known, and the routes see for themselves who may ask.
    """
    is_untraced = untraced(untraced_urls)
    app = ServiceApi(
        telemetry=request_telemetry(is_untraced),
        title=title,
        version=VERSION,
        summary=summary,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,  # an address is right or wrong; a redirected POST is neither
        docs_url=None,  # api/openapi.py says why
        redoc_url=None,
    )
    app.is_untraced = is_untraced
    for router in routers:
        app.include_router(router)
    app.state.health = health
    app.include_router(health_routes.router)
    app.include_router(openapi.router)
    # The last one added sees a request first. A place in work is for a request that is complete: a client that is slow,
    # or has no token, takes none.
    if admission_limit is not None:
        app.add_middleware(LoadShedding, admission=Admission(admission_limit, clock))
    app.add_middleware(BodyLimit, clock=clock)
    if tokens is not None:
        app.add_middleware(TokensFirst, routes=lambda: iter_route_contexts(app.routes))
    if rate_limit is not None:
        app.add_middleware(RequestLimit, counter=RequestCounter(rate_limit, clock), identify=identify)
    if tokens is not None:
        app.add_middleware(Identification, tokens=tokens)
    problem_handlers.install(app, problem_of_error)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
