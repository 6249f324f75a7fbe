"""/docs: the OpenAPI document as a page for people, without a script, and it loads nothing.

Pages that try requests out (Swagger UI) run scripts next to the pages of the shop in which people are signed in.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

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
