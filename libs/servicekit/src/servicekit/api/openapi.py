"""The OpenAPI document and its page."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel

from servicekit.api.idempotency_key import HEADER as IDEMPOTENCY_KEY
from servicekit.api.problem import (
    FORBIDDEN,
    OVERLOADED,
    RATE_LIMITED,
    REQUEST_TIMEOUT,
    UNAUTHENTICATED,
    Problem,
    ProblemType,
    documented,
)
from servicekit.api.request_limits import UNLIMITED_PREFIXES
from servicekit.auth import SCOPES

# ----------------------------------------------------------------------------------------------------------------------
# What the OpenAPI document of every service says beyond its routes: problems, who may ask, limits.
#
# It is written here, once, so that no route can forget it.


_LIMIT_HEADERS = {
    "RateLimit-Policy": "how many requests are served in how many seconds, for each caller",
    "RateLimit": "how many are left, and for how many seconds",
}
_EXAMPLES = {"RateLimit-Policy": '"default";q=600;w=60', "RateLimit": '"default";r=599;t=60'}


def complete(document: dict[str, Any], models: Iterable[type[BaseModel]]) -> None:
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
        if parameter["name"].lower() == IDEMPOTENCY_KEY.lower():
            parameter["required"] = True


def _add_access(operation: dict[str, Any]) -> None:
    if not operation.get("security"):
        operation["security"] = []  # said aloud: nobody is asked for a token
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


# ----------------------------------------------------------------------------------------------------------------------
# /docs: the OpenAPI document as a page for people, without a script, and it loads nothing.
#
# Pages that try requests out (Swagger UI) run scripts next to the pages of the shop in which people are signed in.


_STYLE = (
    "body{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}h3{font-family:monospace;margin-bottom:0}"
    "dt{font-family:monospace}"
)
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; frame-ancestors 'none'; style-src 'sha256-"
    f"{base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()}'",
    "X-Content-Type-Options": "nosniff",
}

router = APIRouter()


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """Every operation, with its parameters, its body and its answers."""
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
