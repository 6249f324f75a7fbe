"""The life of a message: as spans while it happens, and afterwards as its records tell it."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from mq_broker.core.batches import Batch
from mq_broker.core.consumer_offsets import Progress
from mq_broker.core.halves import is_committed
from mq_broker.core.rewrite import Position, schedule_position
from mq_broker.core.topics import level_of
from mq_broker.core.transactions import Phase
from mqproto.codes import LifeEventKind
from mqproto.names import (
    CHECK_MAX_TIMES_TOPIC,
    DLQ_PREFIX,
    GROUP_PREFIXES,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RECALLED_TOPIC,
    WAITING_TOPICS,
)
from mqproto.properties import (
    DUE_TIMESTAMP,
    HALF_TIMESTAMP,
    PGROUP,
    REAL_QID,
    REAL_TOPIC,
    RETRY_TOPIC,
    TRANSACTION_STATE,
    UNIQ_KEY,
    decode_properties,
)
from mqproto.record import Record, decode_record, encoded_properties


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """One event; the meaning of each field stands in admin_service.proto. `timestamp_ms` 0: it is the case now.

    Invariants: an event with a time stands for one record, an event without one is the case now; nothing is told that
    neither a record nor a table of this broker says.
    """

    timestamp_ms: int
    kind: LifeEventKind
    message_id: str
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    group: str = ""
    due_timestamp_ms: int = 0
    reconsume_times: int = 0


@dataclass(frozen=True, slots=True)
class Tables:
    """The broker's tables that the log does not tell.

    `readers` tells what each group that reads the topic has finished of one of its queues, None where it has no offset;
    `phase` tells where a transaction stands, None for one that it does not remember.
    """

    readers: Callable[[str, int], Mapping[str, Progress | None]]
    phase: Callable[[str], Phase | None]


def tell_life(traces: Iterable[Trace], tables: Tables) -> list[LifeEvent]:
    """The events of one message, in the order of `by_time`."""
    ordered = sorted(traces, key=lambda trace: trace.log_offset)
    return sorted(
        [*_transaction(ordered, tables), *_waits(ordered), *_arrivals(ordered), *_readers(ordered, tables)], key=by_time
    )


def by_time(event: LifeEvent) -> tuple[bool, int, int]:
    """The order of events: by time, and by place in the log at equal times; what is the case now comes last."""
    return event.timestamp_ms == 0, event.timestamp_ms, event.log_offset


_END_KINDS = {
    Phase.PARKED: LifeEventKind.PARKED,
    Phase.COMMITTED: LifeEventKind.COMMITTED,
    Phase.ROLLED_BACK: LifeEventKind.ROLLED_BACK,
}


def _transaction(traces: Sequence[Trace], tables: Tables) -> list[LifeEvent]:
    """The half message, which is written again before each check and told once, and what has become of it.

    The delivered message tells the end where there is one, else, of a parked one, the mark of the operator's decision,
    else the op message; failing all of them, the table.
    """
    halves = [trace for trace in traces if trace.topic == HALF_TOPIC]
    parking = [trace for trace in traces if trace.topic == CHECK_MAX_TIMES_TOPIC]
    parked = [trace for trace in parking if TRANSACTION_STATE not in trace.properties]
    ends = [
        trace
        for trace in traces
        if trace.topic == (CHECK_MAX_TIMES_TOPIC if parked else OP_HALF_TOPIC) and TRANSACTION_STATE in trace.properties
    ]
    group = next((trace.producer_group for trace in traces if trace.producer_group), "")
    events = [
        _event(first, LifeEventKind.HALF, group, timestamp_ms=int(first.properties.get(HALF_TIMESTAMP, first.store_ms)))
        for first in halves[:1]
    ]
    events += [_event(trace, LifeEventKind.PARKED, group) for trace in parked[:1]]
    if any(trace.is_delivered_by_commit for trace in traces):
        return events
    events += [_event(end, _END_KINDS[Phase[end.properties[TRANSACTION_STATE]]], group) for end in ends]
    if halves and not ends and not parked:
        phase = tables.phase(halves[0].message_id)
        if phase in _END_KINDS:
            events.append(_event(halves[0], _END_KINDS[phase], group, timestamp_ms=0))
    return events


def _waits(traces: Sequence[Trace]) -> list[LifeEvent]:
    """Waiting for a delivery, or for a retry, and the end of it by a recall.

    What was carried over is told by its first record while that is there; what was rescheduled waits a second time.
    """
    waits = {trace.position: trace for trace in traces if trace.position is not None}
    over = {trace.source for trace in traces}
    recalls = [_event(trace, LifeEventKind.RECALLED, "") for trace in traces if trace.topic == RECALLED_TOPIC]
    return recalls + [
        _event(
            trace,
            LifeEventKind.RETRIED if trace.consumer_group else LifeEventKind.WAITING,
            trace.consumer_group,
            due_timestamp_ms=trace.promised_ms if trace.position in over else trace.due_ms,
        )
        for trace in traces
        if trace.position is not None
        and (trace.source not in waits or waits[trace.source].promised_ms != trace.promised_ms)
    ]


def _arrivals(traces: Sequence[Trace]) -> list[LifeEvent]:
    """Records that groups can read, and dead letters."""
    waits = {trace.position: trace for trace in traces if trace.position is not None}
    events = []
    for trace in traces:
        if trace.topic in DETOUR_TOPICS:
            continue
        group = trace.consumer_group
        if trace.topic.startswith(DLQ_PREFIX):
            kind = LifeEventKind.DEAD
        elif trace.source is not None:
            kind = LifeEventKind.DELIVERED
        elif group:
            kind = LifeEventKind.RETRIED
        elif trace.is_committed:
            kind, group = LifeEventKind.COMMITTED, trace.producer_group
        else:
            kind = LifeEventKind.SENT
        wait = waits.get(trace.source) if trace.source else None
        events.append(_event(trace, kind, group, due_timestamp_ms=wait.promised_ms if wait else 0))
    return events


def _readers(traces: Sequence[Trace], tables: Tables) -> list[LifeEvent]:
    """Which groups have finished it now. A group that gave it back counts where it has come back to."""
    came_back = {trace.consumer_group: trace for trace in traces if trace.consumer_group}  # the newest of each group
    events = []
    for trace in traces:
        if not trace.is_readable:
            continue
        readers = tables.readers(trace.topic, trace.queue_id)
        if group := trace.consumer_group:
            readers = {group: readers.get(group)} if came_back[group] is trace else {}
        else:
            readers = {group: progress for group, progress in readers.items() if group not in came_back}
        for group, progress in sorted(readers.items(), key=lambda reader: reader[0]):
            is_finished = progress is not None and trace.queue_offset in progress
            kind = LifeEventKind.CONSUMED if is_finished else LifeEventKind.UNCONSUMED
            events.append(_event(trace, kind, group, timestamp_ms=0))
    return events


def _event(
    trace: Trace, kind: LifeEventKind, group: str, *, timestamp_ms: int | None = None, due_timestamp_ms: int = 0
) -> LifeEvent:
    return LifeEvent(
        trace.store_ms if timestamp_ms is None else timestamp_ms,
        kind,
        trace.message_id,
        trace.topic,
        trace.queue_id,
        trace.queue_offset,
        trace.log_offset,
        group,
        due_timestamp_ms,
        trace.reconsume_times,
    )


# Groups do not consume these topics.
DETOUR_TOPICS = (HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIMES_TOPIC, *sorted(WAITING_TOPICS), RECALLED_TOPIC)


@dataclass(frozen=True, slots=True)
class Trace:
    """A record as a step in the life of its message.

    Each step of a message leaves a record: its half, its op message, its wait in a delay level, its delivery, its copy
    in a group's retry or dead-letter topic. All of them carry the message's unique id.
    """

    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    store_ms: int
    reconsume_times: int
    is_committed: bool  # a transaction has delivered the message
    source: Position | None  # `position` of the waiting record that this one follows
    due_ms: int  # of a waiting record, by the delay table of now; else 0
    properties: Mapping[str, str]

    @property
    def message_id(self) -> str:
        """The unique id; empty for a message that has none."""
        return self.properties.get(UNIQ_KEY, "")

    @property
    def origin_topic(self) -> str:
        """The topic that the message was sent to."""
        return self.properties.get(RETRY_TOPIC) or self.properties.get(REAL_TOPIC) or self.topic

    @property
    def producer_group(self) -> str:
        """Of a transaction; else empty."""
        return self.properties.get(PGROUP, "")

    @property
    def consumer_group(self) -> str:
        """The group that the message comes back to, or is dead for; empty for a message that is for every group."""
        topic = self.topic if self.position is None else self.properties.get(REAL_TOPIC, "")
        return next((topic.removeprefix(prefix) for prefix in GROUP_PREFIXES if topic.startswith(prefix)), "")

    @property
    def position(self) -> Position | None:
        """Where a waiting record stands, as the record that follows it names it; None for another one."""
        level = level_of(self.topic, self.queue_id)
        return None if level is None else (level, self.queue_offset)

    @property
    def promised_ms(self) -> int:
        """When a waiting record was due by the delay table of the time when it was stored."""
        return int(self.properties.get(DUE_TIMESTAMP, self.due_ms))

    @property
    def is_delivered_by_commit(self) -> bool:
        """Whether its transaction has put it where groups read it, at once and not after a wait."""
        return self.is_committed and self.is_readable and not self.consumer_group and self.source is None

    @property
    def is_readable(self) -> bool:
        """Whether it stands where groups read it."""
        return self.topic not in DETOUR_TOPICS and not self.topic.startswith(DLQ_PREFIX)


def trace_of(record: Record, due_ms: int = 0) -> Trace:
    """What the record says; `due_ms` is when a waiting one is due. Raises PropertiesError."""
    return Trace(
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.log_offset,
        record.store_timestamp_ms,
        record.reconsume_times,
        is_committed(record),
        schedule_position(record),
        due_ms,
        decode_properties(record.properties),
    )


_TRACEPARENT = re.compile(rb"(?:\A|\x02)traceparent\x01(00-[0-9a-f]{32}-([0-9a-f]{16})-([0-9a-f]{2}))\x02")
_SAMPLED = 0x1


class Operation(enum.Enum):
    """The kinds of a broker's spans."""

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
    """Spans of what the broker itself does with a message, and how the message's trace goes through them.

    A record carries the trace context of its sender, as W3C's `traceparent`. Where the broker writes a record anew when
    a half message is committed, when a wait is over, when a message is given up for dead, and that context is sampled,
    the broker has a span of its own: a child of the sender's. Its id takes the place of the sender's in the record, so
    that the consumer's span is a child of the broker's.

    Invariants: of a record nothing but these 16 digits changes, and nothing at all while spans are off; a span ends
    only when its record was written. What the broker does a second time after a crash has a second span: traces tell
    what happened, not what counted.
    """

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
