"""The life of a message, told by what its records say (issue 5, item 6).

Invariants: an event with a time stands for one record, an event without one is the case now; nothing is told that
neither a record nor a table of this broker says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from mq_broker.core.progress import Progress
from mq_broker.core.traces import DETOUR_TOPICS, Trace
from mq_broker.core.transactions import Phase
from mqproto.codes import LifeEventKind
from mqproto.names import CHECK_MAX_TIMES_TOPIC, DLQ_PREFIX, HALF_TOPIC, OP_HALF_TOPIC, RECALLED_TOPIC
from mqproto.properties import HALF_TIMESTAMP, TRANSACTION_STATE


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """One event; the meaning of each field stands in admin_service.proto. `timestamp_ms` 0: it is the case now."""

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
    """What the broker knows beside the log.

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

    The delivered message tells the end where there is one, else, of a parked one, the mark of the operator who has
    decided, else the op message; failing all of them, the table.
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
