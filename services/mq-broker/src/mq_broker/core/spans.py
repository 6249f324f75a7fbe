"""Spans of what the broker itself does with a message, and how the message's trace goes through them.

A record carries the trace context of whoever has sent it, as W3C's `traceparent`. Where the broker writes a record anew
when a half message is committed, when a wait is over, when a message is given up for dead, and that context is sampled,
the broker has a span of its own: a child of the sender's. Its id takes the place of the sender's in the record, so that
who consumes the message is a child of the broker's span.

Invariants: of a record nothing but these 16 digits changes, and nothing at all while spans are off; a span ends only
when its record was written. What the broker does a second time after a crash has a second span: traces tell what
happened, not what counted.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from mq_broker.core.batches import Batch
from mqproto.names import GROUP_PREFIXES
from mqproto.properties import REAL_QID, REAL_TOPIC, UNIQ_KEY, decode_properties
from mqproto.record import Record, decode_record, encoded_properties

_TRACEPARENT = re.compile(rb"(?:\A|\x02)traceparent\x01(00-[0-9a-f]{32}-([0-9a-f]{16})-([0-9a-f]{2}))\x02")
_SAMPLED = 0x1


class Operation(enum.Enum):
    """What a span is about."""

    HALF = "half"  # a half message, until its transaction ends
    WAIT = "wait"  # a delayed, timed or retried message, until it is delivered
    DEAD_LETTER = "dead letter"  # a message that its group could not consume, until it is given up


@dataclass(frozen=True, slots=True)
class Step:
    """A message was in the broker's hands from `start_ms` to `end_ms`; times are milliseconds since 1970.

    Of a wait: when it was `due_ms`, and its level, 0 for a due time of the message's own. Of a half message: how many
    checks were answered with UNKNOW, how its transaction has ended, and its producers' group.
    """

    operation: Operation
    start_ms: int
    end_ms: int
    due_ms: int = 0
    delay_level: int = 0
    checks: int = 0
    outcome: str = ""
    producer_group: str = ""


@dataclass(frozen=True, slots=True)
class Subject:
    """The message that a span is about. The topic is the one that it is going to, or would have gone to.

    `consumer_group` is that of a retried message or a dead letter, which belong to one group.
    """

    topic: str
    queue_id: int
    consumer_group: str
    message_id: str
    reconsume_times: int


class Span(Protocol):
    """A span that has begun. One that never ends is never told."""

    @property
    def span_id(self) -> str:
        """16 hex digits."""

    def end(self) -> None:
        """At the end of its step."""


class Spans(Protocol):
    """Where spans go."""

    @property
    def is_on(self) -> bool:
        """Whether they go anywhere."""

    def begin(self, step: Step, subject: Subject, traceparent: str) -> Span | None:
        """A child of what `traceparent` names; None when it is not recorded."""


class NoSpans:
    """None at all."""

    is_on = False

    def begin(self, step: Step, subject: Subject, traceparent: str) -> None:
        """Nothing begins."""


NO_SPANS: Spans = NoSpans()


@contextmanager
def traced(spans: Spans, moved: Iterable[tuple[Batch, Step]]) -> Iterator[None]:
    """The block writes these batches of one record each, which carry the spans of their steps from here on.

    The spans end with the block. When it raises there are none, and the records are as they were.
    """
    if not spans.is_on:
        yield
        return
    carried = [one for batch, step in moved if (one := _carried(spans, batch, step)) is not None]
    try:
        yield
    except BaseException:
        for one in carried:
            one.take_back()
        raise
    for one in carried:
        one.span.end()


def note(spans: Spans, record: Record, step: Step) -> None:
    """A step after which no record carries the message on; it ends now."""
    found = _sampled(record.properties)
    if found is not None and (span := spans.begin(step, _subject(record), found[1].decode())) is not None:
        span.end()


@dataclass(frozen=True, slots=True)
class _Carried:
    """A record that carries a span in place of `parent_id`, at `at` of its buffer."""

    span: Span
    buffer: bytearray
    at: int
    parent_id: bytes

    def take_back(self) -> None:
        self.buffer[self.at : self.at + len(self.parent_id)] = self.parent_id


def _carried(spans: Spans, batch: Batch, step: Step) -> _Carried | None:
    data = bytes(batch.buffer)
    properties = encoded_properties(data, 0, len(data))
    if (found := _sampled(properties)) is None:
        return None
    span = spans.begin(step, _subject(decode_record(data)), found[1].decode())
    if span is None:
        return None
    carried = _Carried(span, batch.buffer, len(data) - len(properties) + found.start(2), found[2])
    batch.buffer[carried.at : carried.at + len(found[2])] = span.span_id.encode()
    return carried


def _sampled(properties: bytes) -> re.Match[bytes] | None:
    """The trace context, when there is one that is sampled."""
    found = _TRACEPARENT.search(properties)
    return found if found is not None and int(found[3], 16) & _SAMPLED else None


def _subject(record: Record) -> Subject:
    properties = decode_properties(record.properties)
    topic = properties.get(REAL_TOPIC, record.topic)
    return Subject(
        topic,
        int(properties.get(REAL_QID, record.queue_id)),
        next((topic.removeprefix(prefix) for prefix in GROUP_PREFIXES if topic.startswith(prefix)), ""),
        properties.get(UNIQ_KEY, ""),
        record.reconsume_times,
    )
