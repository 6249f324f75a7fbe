"""What the OpenAPI document of every service says beyond its routes: problems, who may ask, limits.

It is written here, once, so that no route can forget it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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
from servicekit.api.request_limit import UNLIMITED_PREFIXES
from servicekit.auth import SCOPES

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
