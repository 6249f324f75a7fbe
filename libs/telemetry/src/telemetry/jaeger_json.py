"""Jaeger's JSON of a trace, as its query API answers it: written from spans, and read into spans.

A span's parent is a CHILD_OF reference and its links are FOLLOWS_FROM ones; kind and status are tags. Times in µs.
Where a span is linked with its own parent, Jaeger tells FOLLOWS_FROM alone: without a CHILD_OF that is the parent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from telemetry.received import ReceivedEvent, ReceivedSpan, Value

CHILD_OF = "CHILD_OF"
FOLLOWS_FROM = "FOLLOWS_FROM"
KIND_TAG = "span.kind"
STATUS_TAG = "otel.status_code"
STATUS_MESSAGE_TAG = "otel.status_description"
SCOPE_TAG = "otel.scope.name"
OWN_TAGS = frozenset({KIND_TAG, STATUS_TAG, STATUS_MESSAGE_TAG, SCOPE_TAG, "error", "internal.span.format"})
EVENT_NAME = "event"


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
