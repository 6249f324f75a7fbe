"""The part of Jaeger's query API that a person and a test use, over what a receiver has kept."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Protocol, Self
from urllib.parse import parse_qs, urlsplit

from telemetry.jaeger_json import trace_document
from telemetry.received import ReceivedSpan

LIMIT = 20  # traces, as in Jaeger when nobody says how many
LIMIT_MAX = 1_500


class SpanSource(Protocol):
    """Where the spans are."""

    def spans(self) -> list[ReceivedSpan]:
        """All of them."""


class JaegerQuery:
    """Serves from `__enter__` to `__exit__`, in threads of its own. Raises OSError, ValueError for the address."""

    def __init__(self, address: str, source: SpanSource) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise ValueError(f"{address!r} is not HOST:PORT")
        self._server = ThreadingHTTPServer((host, int(port)), _handler(source))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="jaeger query", daemon=True)
        self.url = f"http://{host}:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def answer(source: SpanSource, target: str) -> tuple[int, dict[str, Any]]:
    """Status and document for a GET of `target`, the path with its query."""
    url = urlsplit(target)
    parts = [part for part in url.path.split("/") if part]
    match parts:
        case []:
            return 200, {"status": "healthy"}
        case ["api", "services"]:
            services = sorted({span.service for span in source.spans()})
            return 200, _document(services)
        case ["api", "traces"]:
            return _found(source, parse_qs(url.query))
        case ["api", "traces", trace_id]:
            wanted = trace_id.lower().zfill(32)
            spans = [span for span in source.spans() if span.trace_id == wanted]
            return (200, _document([trace_document(spans)])) if spans else _problem(404, "trace not found")
        case ["api", "services", service, "operations"]:
            return 200, _document(sorted({span.name for span in source.spans() if span.service == service}))
        case _:
            return _problem(404, f"there is no {url.path}")


def _found(source: SpanSource, query: dict[str, list[str]]) -> tuple[int, dict[str, Any]]:
    service, operation = query.get("service", [""])[0], query.get("operation", [""])[0]
    limit = query.get("limit", [str(LIMIT)])[0]
    if not service:
        return _problem(400, "parameter 'service' is required")
    if not limit.isdigit() or not 0 < int(limit) <= LIMIT_MAX:
        return _problem(400, f"parameter 'limit' has to be 1 to {LIMIT_MAX}, not {limit!r}")
    traces: dict[str, list[ReceivedSpan]] = defaultdict(list)
    for span in source.spans():
        traces[span.trace_id].append(span)
    matching = [spans for spans in traces.values() if _matches(spans, service, operation)]
    matching.sort(key=lambda spans: min(span.start_ns for span in spans), reverse=True)
    return 200, _document([trace_document(spans) for spans in matching[: int(limit)]])


def _matches(spans: Iterable[ReceivedSpan], service: str, operation: str) -> bool:
    return any(span.service == service and operation in {"", span.name} for span in spans)


def _document(data: list[Any]) -> dict[str, Any]:
    return {"data": data, "total": len(data), "limit": 0, "offset": 0, "errors": None}


def _problem(status: int, text: str) -> tuple[int, dict[str, Any]]:
    return status, {**_document([]), "data": None, "errors": [{"code": status, "msg": text}]}


def _handler(source: SpanSource) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = answer(source, self.path)
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Requests are nothing to tell of."""

    return Handler
