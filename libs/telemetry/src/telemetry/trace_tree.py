"""One trace as a tree of text: what came of what, where, and how long it took.

    python -m telemetry.trace_tree http://127.0.0.1:16686 TRACE_ID

reads it from Jaeger's query API, or from the receiver that stands in for Jaeger.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from telemetry import names
from telemetry.jaeger_json import TraceFormatError, spans_of
from telemetry.received import ReceivedSpan

QUERY_TIMEOUT_S = 10.0
TRACE_ID_DIGITS = 32

# What is worth a place on a span's line, and what it is called there.
SHOWN = {
    names.CONSUMER_GROUP_NAME: "group",
    names.MESSAGE_KEYS: "keys",
    names.MESSAGE_TAG: "tag",
    names.MESSAGE_DELAY_TIME_LEVEL: "level",
    names.DELAY_LEVEL: "level",
    names.DELAY_LATENESS: "late_s",
    names.BATCH_MESSAGE_COUNT: "messages",
    names.RECONSUME_TIMES: "reconsume_times",
    names.TRANSACTION_CHECKS: "checks",
    names.TRANSACTION_STATE: "state",
    names.BROKER_NAME: "broker",
    "http.response.status_code": "status",
    "http.status_code": "status",
    "db.system": "db",
    "db.system.name": "db",
    names.ERROR_TYPE: "error",
}
STATEMENTS = ("db.query.text", "db.statement")
STATEMENT_CHARACTERS = 72


class TraceNotFoundError(Exception):
    """Nobody has this trace, or nobody answers; the sentence says which."""


def trace_tree(spans: Iterable[ReceivedSpan]) -> str:
    """The spans of one trace as lines: kind, name, service, duration in ms, how long after the first one it began.

    Those whose parent is not among them are roots. Links to spans of the trace that are no parents are named by the
    linked span, those into other traces by their ids.
    """
    listed = sorted(spans, key=lambda span: (span.start_ns, span.end_ns, span.span_id))
    if not listed:
        return "no spans\n"
    by_id = {span.span_id: span for span in listed}
    children: dict[str, list[ReceivedSpan]] = defaultdict(list)
    roots = []
    for span in listed:
        if span.parent_span_id in by_id:
            children[span.parent_span_id].append(span)
        else:
            roots.append(span)
    began_ns = listed[0].start_ns
    services = sorted({span.service for span in listed})
    lines = [f"trace {listed[0].trace_id}: {len(listed)} spans of {', '.join(services)}"]
    # (span, what stands before its line, what stands before its children's lines); a stack, for traces of any depth
    waiting = [(span, "", "") for span in reversed(roots)]
    drawn = set()
    while waiting:
        span, before, below = waiting.pop()
        if span.span_id in drawn:
            continue
        drawn.add(span.span_id)
        lines.append(f"{before}{_line(span, began_ns, by_id)}")
        own = children[span.span_id]
        waiting += [
            (child, f"{below}{'└─ ' if child is own[-1] else '├─ '}", f"{below}{'   ' if child is own[-1] else '│  '}")
            for child in reversed(own)
        ]
    return "\n".join(lines) + "\n"


def fetch_trace(query_url: str, trace_id: str) -> list[ReceivedSpan]:
    """The spans of a trace that Jaeger has. Raises TraceNotFoundError, TraceFormatError, ValueError for a bad id."""
    trace_id = trace_id.lower()
    if not 0 < len(trace_id) <= TRACE_ID_DIGITS or not set(trace_id) <= set(string.hexdigits):
        raise ValueError(f"{trace_id!r} is not a trace id of up to {TRACE_ID_DIGITS} hex digits")
    if not query_url.startswith(("http://", "https://")):
        raise ValueError(f"{query_url!r} is not an address like http://127.0.0.1:16686")
    address = f"{query_url.rstrip('/')}/api/traces/{trace_id}"
    document: Any
    try:
        with urllib.request.urlopen(address, timeout=QUERY_TIMEOUT_S) as answer:  # noqa: S310 - checked above
            document = json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            raise TraceNotFoundError(f"{address} answers {error.code}: nobody there has this trace") from None
    except (OSError, ValueError) as error:
        raise TraceNotFoundError(f"{address} gives no trace: {error}") from error
    if not isinstance(document, dict) or not document.get("data"):
        raise TraceNotFoundError(f"{address} has no such trace")
    return spans_of(document["data"][0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one trace; returns 0, or 1 when it cannot be had."""
    parser = argparse.ArgumentParser(prog="python -m telemetry.trace_tree", description="One trace as a tree of text.")
    parser.add_argument("query_url", help="Jaeger's query API, such as http://127.0.0.1:16686")
    parser.add_argument("trace_id", help="32 hex digits")
    options = parser.parse_args(arguments)
    try:
        spans = fetch_trace(options.query_url, options.trace_id)
    except (TraceNotFoundError, TraceFormatError, ValueError) as error:
        print(f"trace_tree: {error}", file=sys.stderr)
        return 1
    print(trace_tree(spans), end="")
    return 0


def _line(span: ReceivedSpan, began_ns: int, by_id: dict[str, ReceivedSpan]) -> str:
    after_ms = (span.start_ns - began_ns) / 1e6
    text = f"{span.name} [{span.service}, {span.kind.lower()}] {span.duration_ms:.1f} ms, at {after_ms:.1f} ms"
    details = [f"{SHOWN[name]}={span.attributes[name]!s}" for name in SHOWN if name in span.attributes]
    details += [f'"{_shortened(str(span.attributes[name]))}"' for name in STATEMENTS if name in span.attributes][:1]
    details += [f"({event.name})" for event in span.events if event.name != "exception"]
    links = [_linked(link, span, by_id) for link in span.links]
    details += [f"-> {link}" for link in links if link]
    if span.status == "ERROR":
        details.append(f"FAILED{f': {_shortened(span.status_message)}' if span.status_message else ''}")
    return " ".join([text, *details])


def _linked(link: tuple[str, str], span: ReceivedSpan, by_id: dict[str, ReceivedSpan]) -> str:
    trace_id, span_id = link
    if trace_id != span.trace_id:
        return f"trace {trace_id} span {span_id}"
    if span_id == span.parent_span_id:
        return ""
    return by_id[span_id].name if span_id in by_id else f"span {span_id}"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= STATEMENT_CHARACTERS else f"{line[: STATEMENT_CHARACTERS - 1]}…"


if __name__ == "__main__":
    sys.exit(main())
