"""Records as Arrow columns, many at a time.

The fixed heads of all records of a frame are one array of numbers, their bodies are slices, and their properties are
taken apart together (property_columns.py); nothing is a Python object of its own but bodies and property values.

Invariant: each column says what mqclient's MessageExt says of the same record; only `topic` is always the queue's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from mqclient import MessageQueue, UnreadableBodyError
from mqclient.compression import decompress
from mqclient.message_id import offset_message_id
from mqproto.properties import KEY_SEPARATOR
from mqproto.record import CRC_BYTES, FLAG_COMPRESSED, HEAD, unpack_ip
from mqproto.sealed_record import SealedRecord
from pyspark_mq.errors import UnreadableMessageError
from pyspark_mq.property_columns import PropertyTable, property_table
from pyspark_mq.schema import arrow_schema

_NAMES = (
    "size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "log_offset", "sys_flag", "born_ms", "born_ip",
    "born_port", "store_ms", "store_ip", "store_port", "reconsume_times", "prepared_offset", "body_size",
)  # fmt: skip
_HEADS = np.dtype([(name, f">i{4 if code == 'i' else 8}") for name, code in zip(_NAMES, HEAD.format[1:], strict=True)])
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_TIMESTAMP_MS_MAX = ((1 << 63) - 1) // 1_000
Heads = NDArray[np.void]


@dataclass(slots=True)
class _Rows:
    """What the columns of one frame are made of."""

    records: Sequence[SealedRecord]
    heads: Heads
    properties: PropertyTable


class Columns:
    """Of one queue. `schema` is a choice of columns; with `tags` or `keys` only messages with one of these are rows."""

    def __init__(
        self,
        schema: StructType,
        queue: MessageQueue,
        *,
        tags: frozenset[str] | None = None,
        keys: frozenset[str] | None = None,
        strict: bool = True,
    ) -> None:
        """What cannot be decoded raises UnreadableMessageError, or is null if not `strict`."""
        self._schema = arrow_schema(schema)
        self._queue = queue
        self._tags, self._keys = tags, keys
        self._strict = strict
        topic = queue.topic.encode()
        self._topic = len(topic).to_bytes(1, "big") + topic
        make: dict[str, Callable[[_Rows], pa.Array]] = {
            "key": lambda rows: rows.properties.keys,
            "keys": lambda rows: _split(rows.properties.keys),
            "tag": lambda rows: rows.properties.tags,
            "body": self._bodies,
            "topic": lambda rows: _repeated(queue.topic, len(rows.records)),
            "broker": lambda rows: _repeated(queue.broker_name, len(rows.records)),
            "queueId": lambda rows: _numbers(rows.heads["queue_id"], np.int32),
            "queueOffset": lambda rows: _numbers(rows.heads["queue_offset"], np.int64),
            "bornTimestamp": lambda rows: _timestamps(rows.heads["born_ms"]),
            "storeTimestamp": lambda rows: _timestamps(rows.heads["store_ms"]),
            "msgId": _message_ids,
            "properties": lambda rows: rows.properties.maps(),
        }
        self._make = [make[name] for name in self._schema.names]
        self._selects = tags is not None or keys is not None
        self._wants_properties = self._selects or bool(
            {"key", "keys", "tag", "msgId", "properties"} & set(self._schema.names)
        )

    def batch(self, records: Sequence[SealedRecord]) -> pa.RecordBatch:
        """One row for each record, or for each that is wanted. Raises UnreadableMessageError."""
        heads: Heads = np.frombuffer(b"".join([record.parts[0] for record in records]), dtype=_HEADS)
        texts = self._properties_texts(records) if self._wants_properties else []
        rows = _Rows(records, heads, property_table(texts, self._unreadable(records, "the properties")))
        if self._selects:
            rows = self._selected(rows, texts)
        return pa.RecordBatch.from_arrays([make(rows) for make in self._make], schema=self._schema)

    def _selected(self, rows: _Rows, texts: list[bytes]) -> _Rows:
        """A broker compares hashes of tags, and the text decides."""
        tags, keys = rows.properties.tags.to_pylist(), rows.properties.keys.to_pylist()
        kept = [
            number
            for number, (tag, key) in enumerate(zip(tags, keys, strict=True))
            if (self._tags is None or tag in self._tags) and (self._keys is None or key in self._keys)
        ]
        if len(kept) == len(rows.records):
            return rows
        records = [rows.records[number] for number in kept]
        table = property_table([texts[number] for number in kept], self._unreadable(records, "the properties"))
        return _Rows(records, rows.heads[kept], table)

    def _properties_texts(self, records: Sequence[SealedRecord]) -> list[bytes]:
        """Behind the topic and two bytes of length, without the CRC property that ends a record."""
        tails = [record.parts[2] for record in records]
        if not all(tail.startswith(self._topic) for tail in tails):
            raise UnreadableMessageError(
                f"the broker has answered a pull from {self._queue} with another topic's record"
            )
        begin = len(self._topic) + 2
        return [tail[begin:-CRC_BYTES] for tail in tails]

    def _bodies(self, rows: _Rows) -> pa.Array:
        bodies: list[bytes | None] = [record.parts[1] for record in rows.records]
        for number in np.flatnonzero(rows.heads["sys_flag"] & FLAG_COMPRESSED).tolist():
            record = rows.records[number]
            try:
                bodies[number] = decompress(record.parts[1], record.sys_flag)
            except UnreadableBodyError as error:
                bodies[number] = None
                self._unreadable(rows.records, "the body")(number, error)
        return pa.array(bodies, pa.binary())

    def _unreadable(self, records: Sequence[SealedRecord], what: str) -> Callable[[int, Exception], None]:
        def tell(number: int, error: Exception) -> None:
            if self._strict:
                where = f"offset {records[number].queue_offset} of {self._queue}"
                raise UnreadableMessageError(
                    f"{what} of the message at {where} cannot be read: {error}; failOnDataLoss=false reads it as null"
                ) from error

        return tell


def _split(keys: pa.Array) -> pa.Array:
    """Lists, empty for null."""
    lists = pc.split_pattern(keys, KEY_SEPARATOR)
    return pa.ListArray.from_arrays(lists.offsets, lists.flatten(), type=pa.list_(pa.field("element", pa.string())))


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _numbers(column: NDArray[np.signedinteger], kind: type[np.signedinteger]) -> pa.Array:
    return pa.array(column.astype(kind))


def _timestamps(column: NDArray[np.int64]) -> pa.Array:
    """Null for a time so far away that no timestamp can hold it: producers write their own."""
    times = column.astype(np.int64)
    far = (times > _TIMESTAMP_MS_MAX) | (times < -_TIMESTAMP_MS_MAX)  # abs() of the least int64 is itself
    return pa.array(times * 1_000, mask=far if far.any() else None).view(_TIMESTAMP)


def _message_ids(rows: _Rows) -> pa.Array:
    ids = rows.properties.unique_keys
    missing = [number for number, text in enumerate(ids) if not text]
    for number in missing:
        head = rows.heads[number]
        ids[number] = offset_message_id(
            unpack_ip(int(head["store_ip"])), int(head["store_port"]), int(head["log_offset"])
        )
    return pa.array(ids, pa.string())
