"""The check of OpenAPI documents finds what is missing, and says where."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from servicekit.testing.openapi_faults import faults

GOOD: dict[str, Any] = {
    "paths": {
        "/towers": {
            "post": {
                "summary": "Build a tower",
                "operationId": "build",
                "tags": ["towers"],
                "security": [],
                "parameters": [{"name": "wide", "in": "query", "schema": {"type": "integer"}, "description": "m"}],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Tower"}}}},
                "responses": {
                    "201": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Tower"}}}},
                    "409": {
                        "content": {
                            "application/problem+json": {
                                "schema": {"$ref": "#/components/schemas/Problem"},
                                "examples": {"too-tall": {"value": {}}},
                            }
                        }
                    },
                },
            }
        }
    },
    "components": {
        "schemas": {
            "Problem": {"type": "object"},
            "Tower": {"type": "object", "required": ["height"], "examples": [{"height": None}]},
        }
    },
}


def test_a_document_that_tells_everything_has_no_faults() -> None:
    assert faults(GOOD) == []


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda operation, _schemas: operation.pop("summary"), "POST /towers: has no summary"),
        (lambda operation, _schemas: operation.pop("security"), "has no security"),
        (lambda operation, _schemas: operation["parameters"][0].pop("description"), "what the parameter wide is"),
        (lambda _operation, schemas: schemas["Tower"].pop("examples"), "its body has no example"),
        (lambda _operation, schemas: schemas["Tower"].update(examples=[{}]), 'wrong: "height" is a required property'),
        (lambda operation, _schemas: operation["responses"]["409"].pop("content"), "its answer 409 has no body"),
        (
            lambda operation, _schemas: operation["responses"]["409"]["content"]["application/problem+json"].update(
                schema={"type": "string"}
            ),
            "its answer 409 is no problem",
        ),
        (
            lambda operation, _schemas: operation["responses"]["409"]["content"]["application/problem+json"].pop(
                "examples"
            ),
            "its answer 409 has no examples",
        ),
        (lambda _operation, schemas: schemas.pop("Problem"), "#/components/schemas/Problem leads nowhere"),
    ],
)
def test_what_is_missing_is_told(spoil: Any, sentence: str) -> None:
    document = copy.deepcopy(GOOD)
    spoil(document["paths"]["/towers"]["post"], document["components"]["schemas"])
    assert any(sentence in fault for fault in faults(document)), faults(document)


def test_two_operations_of_one_name_are_told() -> None:
    document = copy.deepcopy(GOOD)
    document["paths"]["/houses"] = document["paths"]["/towers"]
    assert faults(document) == ["POST /houses: build names another operation too"]
