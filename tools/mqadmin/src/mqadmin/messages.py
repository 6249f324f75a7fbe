"""How a message is shown: its fields in a JSON document, a line in a list, a table of its own."""

from __future__ import annotations

from typing import Any

import typer

from mqadmin.bodies import HEX, UTF_8, body_text, printable
from mqadmin.output import Table, lines
from mqadmin.times import time_fields, time_text
from mqclient import MessageExt

KNOWN_PROPERTIES = frozenset({"KEYS", "TAGS", "UNIQ_KEY"})  # shown by names of their own
BODY_INDENT = "    "


def message_fields(message: MessageExt, *, charset: str = UTF_8, with_body: bool = True) -> dict[str, Any]:
    """The message in a JSON document."""
    queue = message.message_queue
    fields: dict[str, Any] = {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        "broker_name": queue.broker_name,
        "queue_topic": queue.topic,
        "queue_id": queue.queue_id,
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
        **time_fields("born_at", message.born_timestamp_ms),
        **time_fields("stored_at", message.store_timestamp_ms),
        "body_size": len(message.body),
    }
    if with_body:
        fields["body"], fields["body_encoding"] = body_text(message.body, charset)
    return fields


def message_table(message: MessageExt, *, charset: str = UTF_8) -> Table:
    """Everything about one message, a row for each field."""
    text, encoding = body_text(message.body, charset)
    own = {name: value for name, value in message.properties.items() if name not in KNOWN_PROPERTIES}
    rows = {
        "message id": message.message_id,
        "offset id": message.offset_message_id,
        "topic": message.topic,
        "queue": f"{message.message_queue} offset {message.queue_offset}",
        "tag": message.tag or "",
        "keys": " ".join(message.keys),
        "born": time_text(message.born_timestamp_ms),
        "stored": f"{time_text(message.store_timestamp_ms)} at {message.log_offset}, {message.size} bytes",
        "tries": str(message.reconsume_times),
        "properties": ", ".join(f"{name}={value}" for name, value in own.items()),
        f"body ({'hex, ' if encoding == HEX else ''}{len(message.body)} bytes)": text,
    }
    return Table(("field", "value"), list(rows.items()))


def messages_table(messages: list[MessageExt]) -> Table:
    """Several messages, a row for each."""
    return Table(
        ("message id", "queue", "offset", "stored", "tag", "keys", "bytes"),
        [
            (
                message.message_id,
                str(message.message_queue),
                message.queue_offset,
                time_text(message.store_timestamp_ms),
                message.tag,
                " ".join(message.keys),
                len(message.body),
            )
            for message in messages
        ],
    )


def echo_message(message: MessageExt, *, charset: str = UTF_8, with_body: bool = True) -> None:
    """One message of a long list: a line that says what it is, and its body below it."""
    text, encoding = body_text(message.body, charset)
    parts = [
        f"{message.message_queue} offset {message.queue_offset}",
        time_text(message.store_timestamp_ms),
        f"id {message.message_id}",
        *([f"tag {message.tag}"] if message.tag else []),
        *([f"keys {' '.join(message.keys)}"] if message.keys else []),
        f"{len(message.body)} bytes{' as hex' if with_body and encoding == HEX else ''}",
    ]
    typer.echo(printable("  ".join(parts)))
    if with_body:
        for line in lines(text, BODY_INDENT):
            typer.echo(line)
