"""What a record says of the life of its message.

Each step of a message leaves a record: its half, its op message, its wait in a delay level, its delivery, its copy in a
group's retry or dead-letter topic. All of them carry the message's unique id.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mq_broker.core.delay_progress import level_of
from mq_broker.core.halves import is_committed
from mq_broker.core.rewrite import Position, schedule_position
from mqproto.names import (
    CHECK_MAX_TIMES_TOPIC,
    DLQ_PREFIX,
    GROUP_PREFIXES,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RECALLED_TOPIC,
    WAITING_TOPICS,
)
from mqproto.properties import DUE_TIMESTAMP, PGROUP, REAL_TOPIC, RETRY_TOPIC, UNIQ_KEY, decode_properties
from mqproto.record import Record

# Nobody consumes what is there.
DETOUR_TOPICS = (HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIMES_TOPIC, *sorted(WAITING_TOPICS), RECALLED_TOPIC)


@dataclass(frozen=True, slots=True)
class Trace:
    """One record: where it stands, and why."""

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
        """The group that the message comes back to, or is dead for; empty for a message of everybody's."""
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
