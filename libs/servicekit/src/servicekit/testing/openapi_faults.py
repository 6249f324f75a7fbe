"""Faults of an OpenAPI document, each as a sentence about what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs

from servicekit.http.problem import MEDIA_TYPE

_JSON = "application/json"
_PROBLEM = {"$ref": "#/components/schemas/Problem"}


def faults(document: dict[str, Any]) -> list[str]:
    """Every operation is told in words and has a name of its own; every body and answer has an example that is right;
    every error is a problem with examples; every parameter is told; every reference leads somewhere.
    """
    found = [*_broken_references(document)]
    names: set[str] = set()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            where = f"{method.upper()} {path}"
            found += [f"{where}: {fault}" for fault in _faults_of(document, operation)]
            if operation["operationId"] in names:
                found.append(f"{where}: {operation['operationId']} names another operation too")
            names.add(operation["operationId"])
    return found


def _faults_of(document: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    for name in ("summary", "tags", "security"):
        if name not in operation:
            yield f"has no {name}"
    for parameter in operation.get("parameters", ()):
        schema = parameter["schema"]
        if not (parameter.get("description") or schema.get("description") or "examples" in schema or "enum" in schema):
            yield f"does not tell what the parameter {parameter['name']} is"
    body = operation.get("requestBody", {}).get("content", {}).get(_JSON)
    if body is not None:
        yield from (f"its body {fault}" for fault in _example_faults(document, body))
    for status, answer in operation["responses"].items():
        content = answer.get("content", {})
        if int(status) < 400 and _JSON in content:
            yield from (f"its answer {status} {fault}" for fault in _example_faults(document, content[_JSON]))
        elif int(status) >= 400 and MEDIA_TYPE not in content and _JSON not in content:
            yield f"its answer {status} has no body"
        elif MEDIA_TYPE in content and content[MEDIA_TYPE]["schema"] != _PROBLEM:
            yield f"its answer {status} is no problem"
        elif MEDIA_TYPE in content and not content[MEDIA_TYPE].get("examples"):
            yield f"its answer {status} has no examples"


def _example_faults(document: dict[str, Any], content: dict[str, Any]) -> Iterator[str]:
    schema = content["schema"]
    reference = schema.get("$ref", "").rpartition("/")[2]
    described = document["components"]["schemas"][reference] if reference else schema
    examples = described.get("examples") or [value["value"] for value in content.get("examples", {}).values()]
    if not examples:
        yield "has no example"
    validator = jsonschema_rs.validator_for({**schema, "components": document["components"]})
    for example in examples:
        for error in validator.iter_errors(example):
            yield f"has an example that is wrong: {error.message}"


def _broken_references(document: dict[str, Any]) -> Iterator[str]:
    components = document["components"]
    known = {f"#/components/{kind}/{name}" for kind, named in components.items() for name in named}
    for reference in sorted(_references(document) - known):
        yield f"{reference} leads nowhere"


def _references(part: Any) -> set[str]:
    if isinstance(part, dict):
        own = {part["$ref"]} if isinstance(part.get("$ref"), str) else set()
        return own.union(*(_references(value) for value in part.values()))
    return set().union(*(_references(value) for value in part)) if isinstance(part, list) else set()
