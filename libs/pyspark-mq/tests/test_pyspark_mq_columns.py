"""Columns say what mqclient's own message says, whatever a record holds."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructField, StructType

from mqclient import MessageExt, MessageQueue
from mqclient.message import ZLIB_FLAGS
from mqproto.properties import KEYS, TAGS, UNIQ_KEY, PropertiesError, encode_properties
from mqproto.record import (
    FLAG_COMPRESSED,
    OFFSETS,
    OFFSETS_AT,
    STORE,
    STORE_AT,
    SealedRecord,
    encode_record,
    iter_sealed_records,
    pack_ip,
    seal,
)
from pyspark_mq.columns import Columns, PropertyTable, property_table
from pyspark_mq.errors import OptionError, UnreadableMessageError
from pyspark_mq.schema import SCHEMA, arrow_schema, check_schema, schema_of

QUEUE = MessageQueue("orders", "broker-a", 3)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FAR_MS = (1 << 63) // 1_000 + 1
DATETIME_MS = st.integers(-62_135_596_800_000, 253_402_300_799_999)  # the years 1 to 9999

names = st.sampled_from([KEYS, TAGS, UNIQ_KEY, "region", "ref", "ключ"])
texts = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=12)
usual = st.dictionaries(names, texts, max_size=5).map(encode_properties)
# What no producer of ours writes: names twice, empty names, separators too many or missing, bytes that are no text.
odd = st.lists(
    st.sampled_from(
        [b"KEYS\x01a b\x02", b"TAGS\x01t\x02", b"x\x01y", b"\x01z\x02", b"\xff\x01\xfe\x02", b"q\x02", b"\x02"]
    ),
    max_size=4,
).map(b"".join)


def record(
    body: bytes = b"x",
    properties: bytes = b"",
    *,
    queue_offset: int = 0,
    sys_flag: int = 0,
    born_ms: int = 1_700_000_000_001,
    store_ms: int = 1_700_000_000_002,
    log_offset: int = 4_096,
    topic: bytes = b"orders",
) -> bytes:
    """As a broker keeps it."""
    data = bytearray(
        encode_record(
            topic=topic,
            body=body,
            properties=properties,
            queue_id=QUEUE.queue_id,
            born_timestamp_ms=born_ms,
            born_ip=pack_ip("10.0.0.1"),
            sys_flag=sys_flag,
        )
    )
    OFFSETS.pack_into(data, OFFSETS_AT, queue_offset, log_offset)
    STORE.pack_into(data, STORE_AT, store_ms, pack_ip("10.0.0.2"), 10_911)
    seal(data, 0, len(data))
    return bytes(data)


def sealed(*records: bytes) -> list[SealedRecord]:
    return list(iter_sealed_records(b"".join(records)))


def timestamp(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def row_of(message: MessageExt) -> dict[str, Any]:
    """What the columns should say."""
    properties = message.properties
    return {
        "key": properties.get(KEYS),
        "keys": list(message.keys),
        "tag": message.tag,
        "body": message.body,
        "topic": message.message_queue.topic,
        "broker": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "bornTimestamp": timestamp(message.born_timestamp_ms),
        "storeTimestamp": timestamp(message.store_timestamp_ms),
        "msgId": message.message_id,
        "properties": list(properties.items()),
    }


@st.composite
def records_of_a_frame(draw: st.DrawFn) -> list[bytes]:
    return [
        record(
            zlib.compress(body) if compressed else body,
            properties,
            queue_offset=number,
            sys_flag=compressed,
            born_ms=draw(DATETIME_MS),
            store_ms=draw(DATETIME_MS),
            log_offset=draw(st.integers(0, 1 << 62)),
        )
        for number, (body, compressed, properties) in enumerate(
            draw(st.lists(st.tuples(st.binary(max_size=40), st.sampled_from([0, ZLIB_FLAGS, FLAG_COMPRESSED]), usual)))
        )
    ]


@settings(deadline=None)  # the first example imports
@given(records_of_a_frame())
def test_each_row_is_the_message_as_mqclient_reads_it(records: list[bytes]) -> None:
    found = sealed(*records)
    rows = Columns(SCHEMA, QUEUE).batch(found).to_pylist()
    assert rows == [row_of(MessageExt(one, QUEUE.broker_name)) for one in found]


@settings(deadline=None)
@given(st.lists(st.one_of(usual, odd)))
def test_properties_of_every_kind_are_what_mqclient_makes_of_them(properties: list[bytes]) -> None:
    expected, unreadable = list[Any](), list[int]()
    for number, one in enumerate(properties):
        message = MessageExt(sealed(record(b"x", one))[0], QUEUE.broker_name)
        try:
            values = message.properties
            expected.append((values.get(KEYS), message.tag, values.get(UNIQ_KEY), list(values.items())))
        except PropertiesError:
            unreadable.append(number)
            expected.append((None, None, None, None))
    told = list[int]()
    table: PropertyTable = property_table(properties, lambda number, _: told.append(number))
    found = zip(
        table.keys.to_pylist(), table.tags.to_pylist(), table.unique_keys, table.maps().to_pylist(), strict=True
    )
    assert list(found) == expected
    assert told == unreadable


@settings(deadline=None)
@given(records_of_a_frame(), st.sets(st.sampled_from([field.name for field in SCHEMA]), min_size=1))
def test_a_choice_of_columns_is_the_same_columns(records: list[bytes], chosen: set[str]) -> None:
    found = sealed(*records)
    part = Columns(StructType([field for field in SCHEMA if field.name in chosen]), QUEUE).batch(found)
    assert part == Columns(SCHEMA, QUEUE).batch(found).select(part.schema.names)


def test_the_batch_has_exactly_the_schema_that_spark_asks_for() -> None:
    for schema in (SCHEMA, schema_of(include_properties=False)):
        batch = Columns(schema, QUEUE).batch(sealed(record(b"x", encode_properties({KEYS: "a"}))))
        assert batch.schema.equals(arrow_schema(schema))
        batch.validate(full=True)


def test_rows_are_those_whose_tag_and_key_are_wanted_by_their_text() -> None:
    def properties(tag: str, key: str) -> bytes:
        return encode_properties({TAGS: tag, KEYS: key})

    pairs = [("Aa", "1"), ("BB", "1"), ("Aa", "2"), ("", "1")]  # Aa and BB have the same hash
    found = sealed(
        *(record(b"x", properties(*pair), queue_offset=number) for number, pair in enumerate(pairs)),
        record(b"x", b"", queue_offset=4),
    )

    def offsets(**wanted: Any) -> list[int]:
        batch = Columns(SCHEMA, QUEUE, **wanted).batch(found)
        batch.validate(full=True)
        return [int(one) for one in batch.column("queueOffset").to_pylist()]

    assert offsets(tags=frozenset({"Aa"})) == [0, 2]
    assert offsets(keys=frozenset({"1"})) == [0, 1, 3]
    assert offsets(tags=frozenset({"Aa", "BB"}), keys=frozenset({"1"})) == [0, 1]
    assert offsets(tags=frozenset({"C"})) == []
    assert offsets() == [0, 1, 2, 3, 4]


class TestUnreadable:
    def strict(self, records: Sequence[SealedRecord]) -> str:
        with pytest.raises(UnreadableMessageError) as error:
            Columns(SCHEMA, QUEUE).batch(records)
        return str(error.value)

    def test_a_body_that_cannot_be_decompressed_is_named_or_null(self) -> None:
        found = sealed(record(), record(b"no zlib", queue_offset=7, sys_flag=ZLIB_FLAGS))
        told = self.strict(found)
        assert "the body of the message at offset 7 of orders@broker-a:3 cannot be read" in told
        assert "failOnDataLoss=false reads it as null" in told
        assert Columns(SCHEMA, QUEUE, strict=False).batch(found).column("body").to_pylist() == [b"x", None]

    def test_properties_that_are_none_are_named_or_null(self) -> None:
        found = sealed(
            record(properties=encode_properties({TAGS: "t"})), record(b"y", b"\xff\x01a\x02", queue_offset=8)
        )
        assert "the properties of the message at offset 8 of orders@broker-a:3 cannot be read" in self.strict(found)
        batch = Columns(SCHEMA, QUEUE, strict=False).batch(found)
        assert batch.column("properties").to_pylist() == [[(TAGS, "t")], None]
        assert batch.column("tag").to_pylist() == ["t", None]
        assert batch.column("body").to_pylist() == [b"x", b"y"]

    def test_a_time_that_no_timestamp_holds_is_null(self) -> None:
        far = [record(born_ms=born_ms) for born_ms in (FAR_MS, -FAR_MS, -(1 << 63), 5)]
        batch = Columns(SCHEMA, QUEUE).batch(sealed(*far))
        assert batch.column("bornTimestamp").to_pylist() == [None, None, None, timestamp(5)]

    def test_a_record_of_another_topic_is_no_row(self) -> None:
        assert "another topic's record" in self.strict(sealed(record(topic=b"orders2"), record(topic=b"carts2")))


class TestSchema:
    def test_a_user_s_schema_is_a_choice_in_any_order(self) -> None:
        chosen = StructType([SCHEMA["queueOffset"], SCHEMA["body"]])
        assert check_schema(chosen) is chosen

    @pytest.mark.parametrize(
        ("fields", "sentence"),
        [
            ([StructField("offset", IntegerType())], "the schema has a column 'offset'; allowed are key, keys, tag"),
            ([StructField("queueOffset", IntegerType())], "the column 'queueOffset' is int; it has to be bigint"),
            ([SCHEMA["body"], SCHEMA["body"]], "the schema has the columns body, body; each can be named once"),
            ([], "the schema has the columns none"),
        ],
    )
    def test_what_is_no_column_is_rejected(self, fields: list[StructField], sentence: str) -> None:
        with pytest.raises(OptionError, match=sentence):
            check_schema(StructType(fields))
