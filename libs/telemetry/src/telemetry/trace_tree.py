"""One trace as a tree of text: spans with their children, services and durations.

    python -m telemetry.trace_tree http://127.0.0.1:16686 TRACE_ID

reads it from Jaeger's query API, or from the receiver that stands in for Jaeger. In Jaeger's JSON a span's parent is a
CHILD_OF reference and its links are FOLLOWS_FROM ones; kind and status are tags. Times in µs. Where a span is linked
with its own parent, Jaeger tells FOLLOWS_FROM alone: without a CHILD_OF that is the parent.
"""

from __future__ import annotations

import argparse
import json
import string
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from telemetry import names

# A value of an attribute, as OTLP has it.
Value = str | bool | int | float | bytes | list["Value"] | dict[str, "Value"] | None

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")  # by OTLP's number
STATUSES = ("UNSET", "OK", "ERROR")

CHILD_OF = "CHILD_OF"
FOLLOWS_FROM = "FOLLOWS_FROM"
KIND_TAG = "span.kind"
STATUS_TAG = "otel.status_code"
STATUS_MESSAGE_TAG = "otel.status_description"
SCOPE_TAG = "otel.scope.name"
OWN_TAGS = frozenset({KIND_TAG, STATUS_TAG, STATUS_MESSAGE_TAG, SCOPE_TAG, "error", "internal.span.format"})
EVENT_NAME = "event"

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


@dataclass(frozen=True, slots=True)
class ReceivedEvent:
    """Something that happened within a span; `time_ns` since 1970."""

    name: str
    time_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """One span. Ids are lower-case hex, `parent_span_id` is empty for a root; times in ns since 1970.

    `links` are pairs of trace id and span id; `kind` is one of KINDS and `status` one of STATUSES.
    """

    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_span_id: str
    links: list[tuple[str, str]]
    attributes: dict[str, Value]
    events: list[ReceivedEvent]
    start_ns: int
    end_ns: int
    status: str
    status_message: str = ""
    scope: str = ""
    resource: dict[str, Value] = field(default_factory=dict)

    @property
    def duration_ms(self) -> float:
        """From start to end."""
        return (self.end_ns - self.start_ns) / 1e6


@dataclass(frozen=True, slots=True)
class ReceivedMetric:
    """One point of a metric. `value` is that of a gauge or a sum; of a histogram the sum, of `count` values."""

    service: str
    name: str
    unit: str
    kind: str  # gauge, sum or histogram
    attributes: dict[str, Value]
    value: float
    count: int
    time_ns: int


class TraceFormatError(ValueError):
    """This is not a trace as Jaeger's query API answers it."""


def trace_document(spans: Iterable[ReceivedSpan]) -> dict[str, Any]:
    """One trace: an element of `data` in the API's answer."""
    listed = sorted(spans, key=lambda span: span.start_ns)
    processes: dict[tuple[str, str], str] = {}
    documents: dict[str, Any] = {}
    written = []
    for span in listed:
        identity = (span.service, str(span.resource.get("service.instance.id", "")))
        if identity not in processes:
            processes[identity] = f"p{len(processes) + 1}"
            own = {name: value for name, value in span.resource.items() if name != "service.name"}
            documents[processes[identity]] = {"serviceName": span.service, "tags": _tags(own)}
        written.append(_span_document(span, processes[identity]))
    trace_id = listed[0].trace_id if listed else ""
    return {"traceID": trace_id, "spans": written, "processes": documents, "warnings": None}


def spans_of(document: Mapping[str, Any]) -> list[ReceivedSpan]:
    """The spans of one trace. Raises TraceFormatError."""
    try:
        processes = document["processes"]
        return [_span(one, processes[one["processID"]]) for one in document["spans"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TraceFormatError(f"this is no trace of Jaeger's query API: {error!r}") from error


def _span_document(span: ReceivedSpan, process_id: str) -> dict[str, Any]:
    tags: dict[str, Value] = {**span.attributes, KIND_TAG: span.kind.lower()}
    if span.scope:
        tags[SCOPE_TAG] = span.scope
    if span.status != "UNSET":
        tags[STATUS_TAG] = span.status
    if span.status == "ERROR":
        tags["error"] = True
    if span.status_message:
        tags[STATUS_MESSAGE_TAG] = span.status_message
    references = [_reference(FOLLOWS_FROM, trace_id, span_id) for trace_id, span_id in span.links]
    if span.parent_span_id:
        references.insert(0, _reference(CHILD_OF, span.trace_id, span.parent_span_id))
    return {
        "traceID": span.trace_id,
        "spanID": span.span_id,
        "operationName": span.name,
        "references": references,
        "startTime": span.start_ns // 1_000,
        "duration": (span.end_ns - span.start_ns) // 1_000,
        "tags": _tags(tags),
        "logs": [
            {"timestamp": one.time_ns // 1_000, "fields": _tags({EVENT_NAME: one.name, **one.attributes})}
            for one in span.events
        ],
        "processID": process_id,
        "warnings": None,
    }


def _reference(kind: str, trace_id: str, span_id: str) -> dict[str, str]:
    return {"refType": kind, "traceID": trace_id, "spanID": span_id}


def _tags(values: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [_tag(name, value) for name, value in values.items()]


def _tag(name: str, value: Value) -> dict[str, Any]:
    match value:
        case bool():
            return {"key": name, "type": "bool", "value": value}
        case int():
            return {"key": name, "type": "int64", "value": value}
        case float():
            return {"key": name, "type": "float64", "value": value}
        case bytes():
            return {"key": name, "type": "binary", "value": value.hex()}
        case str():
            return {"key": name, "type": "string", "value": value}
        case _:
            return {"key": name, "type": "string", "value": str(value)}


def _span(document: Mapping[str, Any], process: Mapping[str, Any]) -> ReceivedSpan:
    tags = _values(document["tags"])
    references = document["references"] or []
    near = [one for one in references if one["traceID"] == document["traceID"]]
    parents = [one["spanID"] for kind in (CHILD_OF, FOLLOWS_FROM) for one in near if one["refType"] == kind]
    start_ns = int(document["startTime"]) * 1_000
    return ReceivedSpan(
        service=process["serviceName"],
        name=document["operationName"],
        kind=str(tags.get(KIND_TAG, "internal")).upper(),
        trace_id=document["traceID"],
        span_id=document["spanID"],
        parent_span_id=parents[0] if parents else "",
        links=[(one["traceID"], one["spanID"]) for one in references if one["refType"] == FOLLOWS_FROM],
        attributes={name: value for name, value in tags.items() if name not in OWN_TAGS},
        events=[_event(one) for one in document["logs"] or []],
        start_ns=start_ns,
        end_ns=start_ns + int(document["duration"]) * 1_000,
        status=str(tags.get(STATUS_TAG, "ERROR" if tags.get("error") is True else "UNSET")),
        status_message=str(tags.get(STATUS_MESSAGE_TAG, "")),
        scope=str(tags.get(SCOPE_TAG, "")),
        resource={"service.name": process["serviceName"], **_values(process.get("tags") or [])},
    )


def _event(document: Mapping[str, Any]) -> ReceivedEvent:
    fields = _values(document["fields"])
    return ReceivedEvent(str(fields.pop(EVENT_NAME, "")), int(document["timestamp"]) * 1_000, fields)


def _values(tags: Iterable[Mapping[str, Any]]) -> dict[str, Value]:
    return {tag["key"]: tag["value"] for tag in tags}


class TraceNotFoundError(Exception):
    """The server has no such trace, or there is no answer; the message says which."""


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
            raise TraceNotFoundError(f"{address} answers {error.code}: it has no such trace") from None
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
