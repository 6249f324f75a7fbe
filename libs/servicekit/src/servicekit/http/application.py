"""The FastAPI application of a service, with what all of them have: /health, /docs, and one OpenAPI document.

What the document says of every route (problems, scopes, limits) is added here, once, so that none can forget it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from starlette.types import ASGIApp

import telemetry
from osenv import Clock
from servicekit.auth import SCOPES, Tokens
from servicekit.errors import ServiceError
from servicekit.http.limits import Admission, AdmissionLimit, RateLimit, RequestCounter
from servicekit.http.middleware import (
    UNLIMITED_PREFIXES,
    BodyLimit,
    Identification,
    Identify,
    IsUntraced,
    LoadShedding,
    RequestLimit,
    TokensFirst,
    TraceIds,
    identified,
    request_telemetry,
    untraced,
)
from servicekit.http.parameters import HEADER, Liveness, Readiness
from servicekit.http.problem import (
    FORBIDDEN,
    OVERLOADED,
    RATE_LIMITED,
    REQUEST_TIMEOUT,
    UNAUTHENTICATED,
    Problem,
    ProblemType,
    documented,
    install_handlers,
)
from servicekit.monitoring import Health

# It finds a service's health in `app.state.health`, and belongs to no one application: FastAPI remembers the functions
# of routes as long as the process lives, and an application that is over, with its databases, would stay with them.
health_router = APIRouter(prefix="/health", tags=["operations"])


@health_router.get("/live", summary="Whether the process serves requests")
async def live() -> Liveness:
    """Without looking at anything else."""
    return Liveness()


@health_router.get(
    "/ready",
    summary="Whether everything that the service needs works",
    responses={503: {"model": Readiness, "description": "At least one part does not work"}},
)
async def ready(request: Request, response: Response) -> Readiness:
    """Each part by its name."""
    report = await cast(Health, request.app.state.health).report()
    if not report.is_ready:
        response.status_code = 503
    return Readiness(status="ready" if report.is_ready else "not ready", checks=report.checks)


VERSION = "0.1.0"
# Probes ask every second: their spans would hide the others.
UNTRACED_URLS = ("/health/live", "/health/ready")

_TAGS = [
    {"name": "products", "description": "What is on sale, and where its units are."},
    {"name": "orders", "description": "Orders, from their placing to their completion."},
    {"name": "payments", "description": "Money that buyers pay, and that goes back to them."},
    {"name": "webhooks", "description": "What the payment gateway tells; its requests are signed."},
    {"name": "operations", "description": "For operators of the service."},
]


class ServiceApi(FastAPI):
    """FastAPI with an OpenAPI document that says all that holds for every route, and with a trace for each request."""

    is_untraced: IsUntraced

    def build_middleware_stack(self) -> ASGIApp:
        """Outside of everything: an unexpected error is answered within the trace as well."""
        stack = super().build_middleware_stack()
        return stack if telemetry.is_tracing() else TraceIds(stack, self.is_untraced)

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            document = super().openapi()
            complete_document(document, self._models())
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
    and so is `admission_limit`, beyond which requests are told to come back later. `rate_limit` is for each caller that
    `identify` finds. Requests of `untraced_urls`, which are paths, get no trace. Without `tokens` no caller is known,
    and the routes check access themselves.
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
        docs_url=None,  # `docs` says why
        redoc_url=None,
    )
    app.is_untraced = is_untraced
    for router in routers:
        app.include_router(router)
    app.state.health = health
    app.include_router(health_router)
    app.include_router(docs_router)
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
    install_handlers(app, problem_of_error)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


_LIMIT_HEADERS = {
    "RateLimit-Policy": "how many requests are served in how many seconds, for each caller",
    "RateLimit": "how many are left, and for how many seconds",
}
_EXAMPLES = {"RateLimit-Policy": '"default";q=600;w=60', "RateLimit": '"default";r=599;t=60'}


def complete_document(document: dict[str, Any], models: Iterable[type[BaseModel]]) -> None:
    """Add to the document that FastAPI has made of the routes; `models` are those that they take and answer with."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    _add_schemas(schemas)
    _mend_examples(schemas, models)
    components["headers"] = {
        name: {"description": text, "schema": {"type": "string"}, "example": _EXAMPLES[name]}
        for name, text in _LIMIT_HEADERS.items()
    }
    for path, operations in document["paths"].items():
        for operation in operations.values():
            _mend_parameters(operation)
            _add_access(operation)
            if "requestBody" in operation:
                _add_problem(operation, REQUEST_TIMEOUT)
            if not path.startswith(UNLIMITED_PREFIXES):
                _add_limit(operation)


def _add_schemas(schemas: dict[str, Any]) -> None:
    problem = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas |= problem.pop("$defs")
    schemas["Problem"] = problem


def _mend_examples(schemas: dict[str, Any], models: Iterable[type[BaseModel]]) -> None:
    """FastAPI leaves out every null, also those of examples, which are wrong without them."""
    for model in models:
        examples = model.model_json_schema().get("examples")
        if examples and model.__name__ in schemas:
            schemas[model.__name__]["examples"] = examples


def _mend_parameters(operation: dict[str, Any]) -> None:
    """A parameter that may be left out is no null, and a key whose absence is a problem may not be left out."""
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        kinds = [kind for kind in schema.pop("anyOf", ()) if kind != {"type": "null"}]
        if kinds:
            parameter["schema"] = schema = kinds[0] | schema
        if "description" in schema:
            parameter.setdefault("description", schema["description"])
        if parameter["name"].lower() == HEADER.lower():
            parameter["required"] = True


def _add_access(operation: dict[str, Any]) -> None:
    if not operation.get("security"):
        operation["security"] = []  # explicit: no token is needed
        return
    # FastAPI lists all scopes of a route in one entry, which would mean that every one of them is needed.
    (needed,) = operation["security"]
    ((scheme, scopes),) = needed.items()
    _add_problem(operation, UNAUTHENTICATED)
    if scopes:
        operation["security"] = [{scheme: [scope]} for scope in scopes]
        _add_problem(operation, FORBIDDEN)
        names = " or ".join(f"`{scope}` ({SCOPES[scope]})" for scope in scopes)
        operation["description"] = f"{operation.get('description', '')}\n\nScope: {names}.".strip()


def _add_limit(operation: dict[str, Any]) -> None:
    _add_problem(operation, RATE_LIMITED)
    _add_problem(operation, OVERLOADED)
    for answer in operation["responses"].values():
        headers = answer.setdefault("headers", {})
        for name in _LIMIT_HEADERS:
            headers[name] = {"$ref": f"#/components/headers/{name}"}


def _add_problem(operation: dict[str, Any], kind: ProblemType) -> None:
    for status, answer in documented(kind).items():
        there = operation["responses"].setdefault(str(status), answer)
        if there is not answer:
            _merge(there, answer)


def _merge(there: dict[str, Any], answer: dict[str, Any]) -> None:
    """One more problem with the status of those that are there."""
    if answer["description"] in there["description"]:
        return
    there["description"] += f"; {answer['description']}"
    there.setdefault("headers", {}).update(answer.get("headers", {}))
    for media_type, content in answer["content"].items():
        known = there.setdefault("content", {}).setdefault(media_type, {"schema": content["schema"]})
        known.setdefault("examples", {}).update(content["examples"])


_STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}h3{font-family:monospace;margin-bottom:0}"
    "dt{font-family:monospace}"
)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; style-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
}

docs_router = APIRouter()


@docs_router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Every operation, with its parameters, its body and its answers: a page for people, without a script.

    Pages that try requests out (Swagger UI) run scripts next to the pages of the shop in which people are signed in.
    """
    return HTMLResponse("".join(_page(request.app.openapi())), headers=_HEADERS)


def _page(document: Mapping[str, Any]) -> Iterator[str]:
    info = document["info"]
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title>'
    yield f"<style>{_STYLE}</style><h1>{escape(info['title'])}</h1><p>{escape(info.get('summary', ''))}</p>"
    yield '<p>The whole description, for programs: <a href="/openapi.json">/openapi.json</a></p>'
    for tag in document.get("tags", ()):
        yield f"<h2>{escape(tag['name'])}</h2><p>{escape(tag.get('description', ''))}</p>"
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation.get("tags", ()):
                    yield f"<h3>{method.upper()} {escape(path)}</h3>"
                    yield from _operation(operation)


def _operation(operation: Mapping[str, Any]) -> Iterator[str]:
    yield f"<p>{escape(operation.get('summary', ''))}</p><dl>"
    if operation.get("security"):
        scopes = ", ".join(
            sorted({scope for one in operation["security"] for names in one.values() for scope in names})
        )
        yield _row("token", f"needed{', with ' + scopes if scopes else ''}")
    for parameter in operation.get("parameters", ()):
        if "name" in parameter:
            need = "required" if parameter.get("required") else "optional"
            yield _row(parameter["name"], f"{parameter['in']}, {need}. {parameter.get('description', '')}")
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield _row("body", _schema_name(content.get("schema", {})))
    for status, answer in operation.get("responses", {}).items():
        yield _row(status, answer.get("description", ""))
    yield "</dl>"


def _row(term: str, text: str) -> str:
    return f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>"


def _schema_name(schema: Mapping[str, Any]) -> str:
    """As in `components` of the document."""
    return str(schema.get("$ref", schema.get("title", "see the document"))).rpartition("/")[2]
