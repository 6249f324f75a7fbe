"""The columns of many messages, their properties among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql.types import StructType

from mqclient import MessageQueue, UnreadableBodyError
from mqclient.message import decompress, offset_message_id
from mqproto.properties import KEY_SEPARATOR, KEYS, TAGS, UNIQ_KEY, PropertiesError, decode_properties
from mqproto.record import CRC_BYTES, FLAG_COMPRESSED, HEAD, SealedRecord, unpack_ip
from pyspark_mq.errors import UnreadableMessageError
from pyspark_mq.schema import arrow_schema

if TYPE_CHECKING:
    import pyarrow as pa


# Records as Arrow columns, many at a time.
#
# The fixed heads of all records of a frame are one array of numbers, their bodies are slices, and their properties are
# taken apart together (columns.py); nothing is a Python object of its own but bodies and property values.
#
# Invariant: each column says what mqclient's MessageExt says of the same record; only `topic` is always the queue's.

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


# The properties of many records, taken apart together.
#
# All texts of a frame are decoded and split at once. Which name stands where is worked out once for each sequence of
# names, of which a topic has few. A frame with a text that is unusual in any way (not UTF-8, a name twice, a separator
# too many) is read record by record, as mqclient does it.
#
# Invariant: both ways give the same: of a name that comes twice the later value, and null for what cannot be read.

_BOTH_SEPARATORS = b"\x01\x02"
_NOT_SEPARATORS = bytes(set(range(256)) - set(_BOTH_SEPARATORS))
SHAPES_MAX = 1_024  # sequences of names that are remembered

Unreadable = Callable[[int, Exception], None]


@dataclass(slots=True)
class PropertyTable:
    """Of each record its keys, its tag, its unique key, and all of them; `sizes` is None for what cannot be read."""

    keys: pa.Array
    tags: pa.Array
    unique_keys: list[str | None]
    names: Sequence[str]
    values: Sequence[str]
    sizes: Sequence[int | None]

    def maps(self) -> pa.Array:
        """A map for each record."""
        offsets: list[int | None] = []
        at = 0
        for size in self.sizes:
            offsets.append(None if size is None else at)
            at += size or 0
        return pa.MapArray.from_arrays(
            pa.array([*offsets, at], pa.int32()), pa.array(self.names, pa.string()), pa.array(self.values, pa.string())
        )


@dataclass(frozen=True, slots=True)
class _Shape:
    """Where the values stand of a record with these names; -1: it has none."""

    keys: int
    tag: int
    unique_key: int


_Texts = list[str | None]
_Chosen = tuple[_Texts, _Texts, _Texts]  # keys, tags, unique keys


def property_table(texts: Sequence[bytes], unreadable: Unreadable) -> PropertyTable:
    """Of texts without the CRC property. `unreadable` is told of each record that cannot be read, and may raise."""
    return _together(texts) or _one_by_one(texts, unreadable)


def _together(texts: Sequence[bytes]) -> PropertyTable | None:
    """None when there is a text that is not as nearly all are."""
    joined = b"".join(texts)
    sizes = [text.count(b"\x02") for text in texts]
    if joined.translate(None, _NOT_SEPARATORS) != _BOTH_SEPARATORS * sum(sizes):
        return None
    if not all(text.endswith(b"\x02") for text in texts if text):
        return None
    try:
        items = joined.decode().replace("\x02", "\x01").split("\x01")
    except UnicodeDecodeError:
        return None
    names, values = items[:-1:2], items[1::2]
    chosen = _chosen_of_alike(sizes, names, values) or _chosen(sizes, names, values)
    if chosen is None:
        return None
    keys, tags, unique_keys = chosen
    return PropertyTable(pa.array(keys, pa.string()), pa.array(tags, pa.string()), unique_keys, names, values, sizes)


def _chosen_of_alike(sizes: list[int], names: list[str], values: list[str]) -> _Chosen | None:
    """Of records that all have the same names in the same order, as those of one producer mostly have; else None."""
    size = sizes[0] if sizes else 0
    first = tuple(names[:size])
    if not size or names != list(first) * len(sizes) or set(sizes) != {size} or (shape := _shape(first)) is None:
        return None
    keys, tags, unique_keys = (
        values[place::size] if place >= 0 else [None] * len(sizes)
        for place in (shape.keys, shape.tag, shape.unique_key)
    )
    return list(keys), list(tags), list(unique_keys)


def _chosen(sizes: list[int], names: list[str], values: list[str]) -> _Chosen | None:
    """Record by record; None when one of them needs a closer look."""
    keys: _Texts = []
    tags: _Texts = []
    unique_keys: _Texts = []
    at = 0
    for size in sizes:
        shape = _shape(tuple(names[at : at + size]))
        if shape is None:
            return None
        keys.append(values[at + shape.keys] if shape.keys >= 0 else None)
        tags.append(values[at + shape.tag] if shape.tag >= 0 else None)
        unique_keys.append(values[at + shape.unique_key] if shape.unique_key >= 0 else None)
        at += size
    return keys, tags, unique_keys


@lru_cache(maxsize=SHAPES_MAX)
def _shape(names: tuple[str, ...]) -> _Shape | None:
    """Of a record with these names; None when they need a closer look."""
    if not all(names) or len(set(names)) != len(names):
        return None
    keys, tag, unique_key = (names.index(name) if name in names else -1 for name in (KEYS, TAGS, UNIQ_KEY))
    return _Shape(keys, tag, unique_key)


def _one_by_one(texts: Sequence[bytes], unreadable: Unreadable) -> PropertyTable:
    found: list[dict[str, str] | None] = []
    for number, text in enumerate(texts):
        try:
            found.append(decode_properties(text))
        except PropertiesError as error:
            unreadable(number, error)
            found.append(None)
    known = [one or {} for one in found]
    return PropertyTable(
        pa.array([one.get(KEYS) for one in known], pa.string()),
        pa.array([one.get(TAGS) for one in known], pa.string()),
        [one.get(UNIQ_KEY) for one in known],
        list(chain.from_iterable(known)),
        list(chain.from_iterable(one.values() for one in known)),
        [None if one is None else len(one) for one in found],
    )
