"""What holds for the trace of an order, said of a neutral list of spans, whatever has collected them.

check_life(receiver.trace(trace_id), CLOSED_ORDER)
check_life(spans_of_jaeger(answer.json()), CLOSED_ORDER)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from telemetry.trace_tree import ReceivedSpan, spans_of

SQL = "SQL"
GROUP = "messaging.consumer.group.name"
TAG = "messaging.rocketmq.message.tag"
DATABASE = ("db.system.name", "db.system")


@dataclass(frozen=True, slots=True)
class Seen:
    """Spans of a kind: whose they are and what they are called; SQL stands for every statement.

    `detail` is the consumer group, or the tag of the message, where the name alone does not tell; empty is any.
    """

    service: str
    name: str
    detail: str = ""

    def matches(self, span: ReceivedSpan) -> bool:
        is_statement = any(name in span.attributes for name in DATABASE)
        if span.service != self.service or (SQL if is_statement else span.name) != self.name:
            return False
        return not self.detail or self.detail in (span.attributes.get(GROUP), span.attributes.get(TAG))

    def __str__(self) -> str:
        return f"{self.service}: {self.name}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Step:
    """A span and the span that it is a child of; `parent` None is the root of the trace."""

    parent: Seen | None
    child: Seen

    def __str__(self) -> str:
        return f"{self.child}, a child of {self.parent or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge of the service graph: a span of `to_service`, called `through`, whose parent is of `from_service`."""

    from_service: str
    to_service: str
    through: str


@dataclass(frozen=True, slots=True)
class Life:
    """What the trace of an order has to have, at least."""

    edges: tuple[Edge, ...]
    steps: tuple[Step, ...]


def spans_of_jaeger(answer: Mapping[str, Any]) -> list[ReceivedSpan]:
    """The spans of what `GET /api/traces/{id}` of Jaeger has answered; none when it has not got the trace (yet)."""
    return [span for document in answer.get("data") or () for span in spans_of(document)]


def check_life(spans: Sequence[ReceivedSpan], life: Life) -> None:
    """Raises AssertionError, with a sentence for each thing that is wrong."""
    wrong = [
        *disconnections(spans),
        *(f"no edge {edge}" for edge in missing_edges(spans, life)),
        *(f"no span {step}" for step in missing_steps(spans, life)),
    ]
    assert not wrong, "\n".join([*wrong, "the trace:", *_lines(spans)])


def disconnections(spans: Sequence[ReceivedSpan], others: Sequence[ReceivedSpan] = ()) -> list[str]:
    """Why this is not one connected trace; nothing if it is.

    Links may lead into other traces, which are in `others`; without them only links within the trace are followed.
    """
    if not spans:
        return ["there is no span"]
    found = []
    traces = {span.trace_id for span in spans}
    if len(traces) > 1:
        found.append(f"these are {len(traces)} traces")
    known = {span.span_id: span for span in spans}
    if len(known) < len(spans):
        found.append("a span is there twice")
    roots = [span for span in spans if not span.parent_span_id]
    if len(roots) != 1:
        found.append(f"{len(roots)} roots: {', '.join(f'{span.service}: {span.name}' for span in roots) or 'none'}")
    for span in spans:
        if span.parent_span_id and span.parent_span_id not in known:
            found.append(f"{span.service}: {span.name} has a parent that was not received")
    elsewhere = {(span.trace_id, span.span_id) for span in others}
    for span in spans:
        for trace_id, span_id in span.links:
            if trace_id in traces and span_id not in known:
                found.append(f"{span.service}: {span.name} is linked with a span of its trace that was not received")
            elif trace_id not in traces and others and (trace_id, span_id) not in elsewhere:
                found.append(f"{span.service}: {span.name} is linked with a span elsewhere that was not received")
    return found


def edges_of(spans: Sequence[ReceivedSpan]) -> set[Edge]:
    """The service graph of a trace."""
    return {
        Edge(parent.service, child.service, child.name)
        for parent, child in _families(spans)
        if parent is not None and parent.service != child.service
    }


def missing_edges(spans: Sequence[ReceivedSpan], life: Life) -> list[Edge]:
    """Those of the life's edges that the trace has not got."""
    there = edges_of(spans)
    return [edge for edge in life.edges if edge not in there]


def missing_steps(spans: Sequence[ReceivedSpan], life: Life) -> list[Step]:
    """Those of the life's steps that the trace has not got."""
    families = list(_families(spans))
    return [step for step in life.steps if not any(_is_step(step, *family) for family in families)]


def _is_step(step: Step, parent: ReceivedSpan | None, child: ReceivedSpan) -> bool:
    if not step.child.matches(child):
        return False
    if step.parent is None:
        return not child.parent_span_id
    return parent is not None and step.parent.matches(parent)


def _families(spans: Sequence[ReceivedSpan]) -> Iterator[tuple[ReceivedSpan | None, ReceivedSpan]]:
    known = {span.span_id: span for span in spans}
    return ((known.get(span.parent_span_id), span) for span in spans)


def _lines(spans: Sequence[ReceivedSpan]) -> list[str]:
    """The trace as a tree of text; what has no parent here stands on the left."""
    known = {span.span_id for span in spans}
    children: dict[str, list[ReceivedSpan]] = {}
    for span in sorted(spans, key=lambda one: one.start_ns):
        children.setdefault(span.parent_span_id if span.parent_span_id in known else "", []).append(span)
    lines: list[str] = []
    waiting = [(span, 0) for span in reversed(children.get("", []))]
    while waiting:
        span, depth = waiting.pop()
        detail = str(span.attributes.get(GROUP) or span.attributes.get(TAG) or "")
        lines.append(f"{'  ' * depth}{span.service}: {span.name} {detail}".rstrip())
        waiting += [(child, depth + 1) for child in reversed(children.get(span.span_id, []))]
    return lines
