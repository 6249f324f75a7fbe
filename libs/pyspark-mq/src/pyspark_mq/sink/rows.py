"""Rows as messages: which columns a table may have, and what is in them.

Invariant: what a column says is sent as it is, or the row is refused; nothing is cut, replaced or left out, but the
properties that belong to the queue, of which a message gets its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from mqclient import Message
from mqproto.properties import RESERVED
from pyspark_mq.sink.options import RowError, SinkSchemaError

Columns = dict[str, tuple[str, tuple[DataType, ...]]]

COLUMNS: Columns = {
    "body": ("string or binary", (StringType(), BinaryType())),
    "topic": ("string", (StringType(),)),
    "tag": ("string", (StringType(),)),
    "key": ("string", (StringType(),)),
    "keys": ("array<string>", (ArrayType(StringType()),)),
    "properties": ("map<string,string>", (MapType(StringType(), StringType()),)),
    "delayLevel": ("int", (IntegerType(), ByteType(), ShortType(), LongType())),
    "deliverAt": ("timestamp", (TimestampType(),)),
}


def check_columns(schema: StructType, topic: str) -> None:
    """Raises SinkSchemaError with what is allowed; `topic` is the option's, empty without."""
    names = schema.fieldNames()
    for field in schema:
        if field.name not in COLUMNS:
            raise SinkSchemaError(
                f"the column {field.name!r} is none of a message's; allowed are {', '.join(COLUMNS)}. "
                f"Rename it, drop it, or put it into the map `properties`"
            )
        allowed, types = COLUMNS[field.name]
        if field.dataType.simpleString() not in {one.simpleString() for one in types}:
            raise SinkSchemaError(
                f"the column {field.name!r} is {field.dataType.simpleString()}; it has to be {allowed}"
            )
    if len(set(names)) != len(names):
        raise SinkSchemaError(f"the columns are {', '.join(names)}; each can be there once")
    if "body" not in names:
        raise SinkSchemaError(f"there is no column body; a message needs one. The columns are {', '.join(names)}")
    if not topic and "topic" not in names:
        raise SinkSchemaError("nothing says the topic: set the option topic, or give the table a column topic")
    if topic and "topic" in names:
        raise SinkSchemaError("the topic is an option and a column both; leave one of them out")
    for one, other in (("key", "keys"), ("delayLevel", "deliverAt")):
        if one in names and other in names:
            raise SinkSchemaError(f"there is a column {one} and a column {other}; a message takes one of them")


def messages(batch: pa.RecordBatch, topic: str, first_row: int) -> Iterator[Message]:
    """One for each row. Raises RowError, which counts the rows of the partition from `first_row`."""
    names = set(batch.schema.names)

    def column(name: str) -> Iterator[Any]:
        return iter(batch.column(name).to_pylist()) if name in names else repeat(None)

    rows = zip(
        range(first_row, first_row + batch.num_rows),
        column("body"), repeat(topic) if topic else column("topic"), column("tag"), column("key"), column("keys"),
        column("properties"), column("delayLevel"), column("deliverAt"),
        strict=False,
    )  # fmt: skip
    for number, body, to, tag, key, keys, properties, delay_level, deliver_at in rows:
        if body is None:
            raise RowError(f"row {number}: the body is null; a message needs one, of a byte at least")
        if to is None:
            raise RowError(f"row {number}: the topic is null")
        yield Message(
            to,
            body.encode() if isinstance(body, str) else body,
            tag=tag,
            keys=_keys(number, key, keys),
            properties=_properties(number, properties) if properties else None,
            delay_level=delay_level or 0,
            deliver_at=deliver_at,
        )


def _keys(number: int, key: str | None, keys: Sequence[str | None] | None) -> str | Sequence[str]:
    if keys is None:
        return key.split(" ") if key and " " in key else key or ""  # several, as the source's column key has them
    if None in keys:
        raise RowError(f"row {number}: one of its keys is null")
    return [one for one in keys if one is not None]


def _properties(number: int, pairs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """In the order of their names: a map has none, and a replay has to give the same message."""
    found = {}
    for name, value in sorted(pairs, key=lambda pair: pair[0]):
        if value is None:
            raise RowError(f"row {number}: the property {name!r} is null; leave it out of the map, or make it text")
        if name not in RESERVED:
            found[name] = value
    return found
