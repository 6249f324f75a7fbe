"""A record of the log as a person wants to see it, in names and plain values.

Invariant: whatever a client has put into a record, the text made of it is one line without control characters.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from mq_broker.core.halves import is_committed
from mqproto.names import CHANGES_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, RECALLED_TOPIC, SCHEDULE_TOPIC, WAITING_TOPICS
from mqproto.properties import (
    DUE_TIMESTAMP,
    KEYS,
    REAL_QID,
    REAL_TOPIC,
    SCHEDULE_POSITION,
    TAGS,
    TRANSACTION_STATE,
    UNIQ_KEY,
    PropertiesError,
    decode_properties,
)
from mqproto.record import Record

PREVIEW_BYTES = 32


@dataclass(frozen=True, slots=True)
class RecordView:
    """One record. Times are milliseconds since 1970; sizes are bytes; `state` is empty for an ordinary message."""

    log_offset: int
    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_timestamp_ms: int
    tag: str
    keys: str
    unique_key: str
    reconsume_times: int
    body_bytes: int
    body_preview: str
    state: str

    @classmethod
    def of(cls, record: Record) -> RecordView:
        """The view of a record, also of one whose properties cannot be read."""
        try:
            properties = decode_properties(record.properties)
            state = _state(record, properties)
        except PropertiesError as error:
            properties, state = {}, f"properties cannot be read: {error}"
        return cls(
            record.log_offset,
            record.size,
            record.topic,
            record.queue_id,
            record.queue_offset,
            record.store_timestamp_ms,
            properties.get(TAGS, ""),
            properties.get(KEYS, ""),
            properties.get(UNIQ_KEY, ""),
            record.reconsume_times,
            len(record.body),
            preview(record.body),
            state,
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __str__(self) -> str:
        parts = [
            f"{self.log_offset:>12}  {self.size:>6} B  {self.topic}/{self.queue_id} #{self.queue_offset}",
            time_text(self.store_timestamp_ms),
            *(f"{name}={value}" for name, value in self._names() if value),
            f"body {self.body_bytes} B '{self.body_preview}'",
        ]
        return one_line("  ".join([*parts, f"[{self.state}]"] if self.state else parts))

    def _names(self) -> list[tuple[str, str]]:
        times = str(self.reconsume_times) if self.reconsume_times else ""
        return [("tag", self.tag), ("keys", self.keys), ("unique", self.unique_key), ("reconsumed", times)]


def _state(record: Record, properties: dict[str, str]) -> str:
    """What the queue itself means by this record, if anything."""
    target = f"{properties.get(REAL_TOPIC, '?')}/{properties.get(REAL_QID, '?')}"
    if record.topic == HALF_TOPIC:
        return f"half message for {target}"
    if record.topic == OP_HALF_TOPIC:
        return f"op: half #{record.body.decode(errors='replace')} ended {properties.get(TRANSACTION_STATE, '?')}"
    if record.topic in WAITING_TOPICS:
        due = properties.get(DUE_TIMESTAMP, "")
        text = time_text(int(due)) if due.isascii() and due.isdigit() else "?"
        by = f"by level {record.queue_id + 1}" if record.topic == SCHEDULE_TOPIC else "by the timer"
        instead = f", in place of {properties[SCHEDULE_POSITION]}" if SCHEDULE_POSITION in properties else ""
        return f"delayed {by} until {text} for {target}{instead}"
    if record.topic == RECALLED_TOPIC:
        return f"taken back, was delayed at {properties.get(SCHEDULE_POSITION, '?')}"
    if record.topic == CHANGES_TOPIC:
        return "changed by an operator"
    if SCHEDULE_POSITION in properties:
        return f"delivered, was delayed at {properties[SCHEDULE_POSITION]}"
    if is_committed(record):
        return f"committed, was half #{record.prepared_transaction_offset}"
    return ""


def preview(body: bytes) -> str:
    """The beginning of a body as text."""
    text = body[:PREVIEW_BYTES].decode(errors="replace")
    return one_line(text) + ("..." if len(body) > PREVIEW_BYTES else "")


def one_line(text: str) -> str:
    """The text with a dot for each character that a terminal would not print."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "." for char in text)


def time_text(timestamp_ms: int) -> str:
    """The time in UTC, or the bare number when no calendar has it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{timestamp_ms % 1000:03d}Z"
