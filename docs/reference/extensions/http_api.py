"""The directive `http-api`: a service's OpenAPI document, made by the service itself, as a page.

.. http-api:: orders
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from docutils import nodes  # type: ignore[import-untyped]
from plain_docstrings import restructured
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import orders.api.application
import payments.api.application
import sandbox_gateway.api
from orders.api.application import order_events
from osenv import SimClock
from servicekit.auth import Tokens
from servicekit.monitoring import Health

Document = dict[str, Any]

METHODS = ("get", "post", "put", "patch", "delete")
UNUSED: Any = None  # routes are described, and not called
KEYS = (("none", "not used to sign anything, and longer than 32 characters"),)


def _orders() -> Document:
    clock = SimClock()
    api = orders.api.application.build_api(
        UNUSED,
        Health({}, clock),
        tokens=Tokens(KEYS, clock),
        rate_limit=None,
        clock=clock,
        more_routers=[order_events(UNUSED, clock)],
    )
    return api.openapi()


def _payments() -> Document:
    clock = SimClock()
    api = payments.api.application.build_api(
        UNUSED, Health({}, clock), tokens=Tokens(KEYS, clock), rate_limit=None, clock=clock
    )
    return api.openapi()


def _gateway() -> Document:
    clock = SimClock()
    return sandbox_gateway.api.build_api(UNUSED, Health({}, clock), clock).openapi()


DOCUMENTS: dict[str, Callable[[], Document]] = {"orders": _orders, "payments": _payments, "gateway": _gateway}


class HttpApi(SphinxDirective):
    """Sections: one for each tag with its operations, and the schemas of what is sent and answered."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        if name not in DOCUMENTS:
            raise self.error(f"there is no {name}; there are {', '.join(DOCUMENTS)}")
        return self.parse_text_to_nodes("\n".join(page(DOCUMENTS[name]())), allow_section_headings=True)


def page(document: Document) -> Iterator[str]:
    """The document as reStructuredText."""
    yield from restructured([document["info"]["summary"] + "."])
    by_tag: dict[str, list[tuple[str, str, Document]]] = {}
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                for tag in methods[method].get("tags", ["other"]):
                    by_tag.setdefault(tag, []).append((method, path, methods[method]))
    for tag, operations in by_tag.items():
        yield from _heading(tag.capitalize(), "=")
        for method, path, operation in operations:
            yield from _operation(method, path, operation)
    yield from _heading("Schemas", "=")
    for name, schema in sorted(document.get("components", {}).get("schemas", {}).items()):
        yield from _schema(name, schema)


def _heading(text: str, line: str) -> list[str]:
    return ["", text, line * len(text), ""]


def _operation(method: str, path: str, operation: Document) -> Iterator[str]:
    yield from _heading(operation.get("summary", path), "-")
    yield from [f"``{method.upper()} {path}``", ""]
    yield from restructured(operation.get("description", "").splitlines())
    rows = [
        (f"``{one['name']}``", one["in"], _type(one["schema"]), _text(one.get("description", "")))
        for one in operation.get("parameters", [])
    ]
    yield from _table(("Parameter", "in", "type", ""), rows)
    if body := operation.get("requestBody"):
        kinds = [f"{_type(content.get('schema', {}))} (``{kind}``)" for kind, content in body["content"].items()]
        yield from [f"Body: {', '.join(kinds)}", ""]
    answers = [
        (status, _answer_type(answer), _text(answer.get("description", "")))
        for status, answer in sorted(operation["responses"].items())
    ]
    yield from _table(("Answer", "body", ""), answers)


def _answer_type(answer: Document) -> str:
    return ", ".join(_type(content.get("schema", {})) for content in answer.get("content", {}).values())


def _schema(name: str, schema: Document) -> Iterator[str]:
    yield from _heading(name, "-")
    yield from restructured(schema.get("description", "").splitlines())
    if "enum" in schema:
        yield from [f"One of {', '.join(f'``{one}``' for one in schema['enum'])}.", ""]
    required = schema.get("required", [])
    rows = [
        (f"``{field}``", _type(one), "yes" if field in required else "", _text(one.get("description", "")))
        for field, one in schema.get("properties", {}).items()
    ]
    yield from _table(("Field", "type", "required", ""), rows)


def _type(schema: Document) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if alternatives := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return " or ".join(dict.fromkeys(_type(one) for one in alternatives))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    if "const" in schema:
        return f"``{schema['const']}``"
    return " ".join(part for part in (str(schema.get("type", "anything")), schema.get("format", "")) if part)


def _text(text: str) -> str:
    return " ".join(" ".join(restructured(text.splitlines())).split())


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    if not rows:
        return
    yield from [".. list-table::", "   :header-rows: 1", ""]
    for row in (head, *rows):
        for index, cell in enumerate(row):
            yield f"   {'* -' if index == 0 else '  -'} {cell}".rstrip()
    yield ""


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("http-api", HttpApi)
    return {"parallel_read_safe": True}
