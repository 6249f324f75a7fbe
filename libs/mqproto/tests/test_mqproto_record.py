"""The message record against bytes that were written by hand from its layout, and against damage of every kind."""

from __future__ import annotations

import zlib

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from mqproto import record
from mqproto.properties import PROPERTIES_BYTES_MAX
from mqproto.record import (
    CRC_BYTES,
    CRC_MASK,
    CRC_PLACEHOLDER,
    Record,
    RecordError,
    decode_record,
    encode_record,
    is_sealed,
    seal,
)

# The layout, big-endian: (field, bytes, value). Written by hand; nothing of mqproto is used for it.
BODY = b'{"order":"100"}'
TOPIC = b"order-events"
PROPERTIES = b"KEYS\x01ORDERID_100\x02TAGS\x01created\x02"
FIELDS = [
    ("total size", 4, 4 + 4 + 4 + 4 + 4 + 8 + 8 + 4 + 8 + 8 + 8 + 8 + 4 + 8 + 4 + 15 + 1 + 12 + 2 + 30 + 20),
    ("magic", 4, 0xDAA320A7),
    ("body CRC", 4, zlib.crc32(BODY) & 0x7FFFFFFF),
    ("queue id", 4, 3),
    ("flag", 4, 7),
    ("queue offset", 8, 41),
    ("physical offset", 8, 1_073_741_824),
    ("sysflag", 4, 0),
    ("born timestamp", 8, 1_700_000_000_000),
    ("born host", 4, 0xC0A80080),  # 192.168.0.128
    ("born port", 4, 50_001),
    ("store timestamp", 8, 1_700_000_000_005),
    ("store host", 4, 0x7F000001),  # 127.0.0.1
    ("store port", 4, 10_911),
    ("reconsume times", 4, 2),
    ("prepared transaction offset", 8, 0),
    ("body length", 4, 15),
]
USUAL = {"topic": b"t", "body": b"b", "properties": b"", "queue_id": 0, "born_timestamp_ms": 0, "born_ip": 0}


def by_hand() -> bytes:
    head = b"".join(value.to_bytes(size, "big") for _, size, value in FIELDS)
    covered = head + BODY + b"\x0c" + TOPIC + (30 + 20).to_bytes(2, "big") + PROPERTIES
    digits = f"{zlib.crc32(covered) & 0x7FFFFFFF:010d}"
    return covered + b"__CRC32#\x01" + digits[::-1].encode() + b"\x02"


def stamp(data: bytes, *, queue_offset: int, log_offset: int, store_ms: int, ip: str, port: int) -> bytearray:
    """What the broker writes into a record that came over the wire."""
    buffer = bytearray(data)
    record.OFFSETS.pack_into(buffer, record.OFFSETS_AT, queue_offset, log_offset)
    record.STORE.pack_into(buffer, record.STORE_AT, store_ms, record.pack_ip(ip), port)
    seal(buffer, 0, len(buffer))
    return buffer


def sealed(body: bytes = BODY, *, flag: int = 0) -> bytes:
    data = bytearray(
        encode_record(
            topic=TOPIC,
            body=body,
            properties=PROPERTIES,
            queue_id=1,
            born_timestamp_ms=1,
            born_ip=record.pack_ip("10.0.0.1"),
            flag=flag,
        )
    )
    seal(data, 0, len(data))
    return bytes(data)


def test_layout_starts_the_body_at_byte_88() -> None:
    assert sum(size for _, size, _ in FIELDS) == record.BODY_AT == 88
    assert FIELDS[0][2] == len(by_hand()) == 168


def test_encoded_and_stamped_record_is_the_one_written_by_hand() -> None:
    sent = encode_record(
        topic=TOPIC,
        body=BODY,
        properties=PROPERTIES,
        queue_id=3,
        flag=7,
        born_timestamp_ms=1_700_000_000_000,
        born_ip=record.pack_ip("192.168.0.128"),
        born_port=50_001,
        reconsume_times=2,
    )
    stamped = stamp(
        sent,
        queue_offset=41,
        log_offset=1_073_741_824,
        store_ms=1_700_000_000_005,
        ip="127.0.0.1",
        port=10_911,
    )
    assert bytes(stamped) == by_hand()


def test_record_written_by_hand_is_decoded() -> None:
    data = by_hand()
    assert is_sealed(data, 0, len(data))
    assert decode_record(data) == Record(
        size=168,
        body_crc=zlib.crc32(BODY) & 0x7FFFFFFF,
        queue_id=3,
        flag=7,
        queue_offset=41,
        log_offset=1_073_741_824,
        sys_flag=0,
        born_timestamp_ms=1_700_000_000_000,
        born_host=("192.168.0.128", 50_001),
        store_timestamp_ms=1_700_000_000_005,
        store_host=("127.0.0.1", 10_911),
        reconsume_times=2,
        prepared_transaction_offset=0,
        body=BODY,
        topic="order-events",
        properties=PROPERTIES,
    )


def test_encoded_properties_are_found_without_decoding_the_rest() -> None:
    data = by_hand()
    around = b"before" + data + b"behind"
    assert record.encoded_properties(around, 6, len(data)) == PROPERTIES + data[-CRC_BYTES:]


def test_patch_positions_are_those_of_the_layout() -> None:
    starts, at = {}, 0
    for name, size, _ in FIELDS:
        starts[name] = at
        at += size
    assert starts["queue id"] == record.QUEUE_ID_AT
    assert starts["queue offset"] == record.OFFSETS_AT
    assert starts["sysflag"] == record.SYS_FLAG_AT
    assert starts["store timestamp"] == record.STORE_AT


def test_fields_of_the_broker_are_zero_on_the_wire() -> None:
    data = encode_record(
        topic=TOPIC, body=BODY, properties=b"", queue_id=0, born_timestamp_ms=1, born_ip=record.pack_ip("10.0.0.1")
    )
    decoded = decode_record(data)
    assert (decoded.queue_offset, decoded.log_offset, decoded.store_timestamp_ms) == (0, 0, 0)
    assert decoded.store_host == ("0.0.0.0", 0)
    assert decoded.prepared_transaction_offset == 0
    assert data.endswith(b"__CRC32#\x010000000000\x02")


INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None, max_examples=200)
@given(
    topic=st.text(min_size=1, max_size=30),
    body=st.binary(max_size=2000),
    properties=st.binary(max_size=500),
    numbers=st.tuples(INT32, INT64, INT32, INT32, INT32, INT32, INT64),
    lead=st.binary(max_size=50),
)
def test_every_record_comes_back_as_it_was(
    topic: str, body: bytes, properties: bytes, numbers: tuple[int, ...], lead: bytes
) -> None:
    queue_id, born_ms, born_ip, port, flag, reconsume_times, prepared = numbers
    data = encode_record(
        topic=topic.encode(),
        body=body,
        properties=properties,
        queue_id=queue_id,
        born_timestamp_ms=born_ms,
        born_ip=born_ip,
        born_port=port,
        flag=flag,
        reconsume_times=reconsume_times,
        prepared_transaction_offset=prepared,
    )
    buffer = bytearray(lead + data)
    seal(buffer, len(lead), len(data))
    for form in (buffer, bytes(buffer), memoryview(buffer)):
        assert is_sealed(form, len(lead), len(data))
    decoded = decode_record(bytes(buffer), len(lead))
    assert decoded.size == len(data)
    assert (decoded.topic, decoded.body, decoded.properties) == (topic, body, properties)
    assert (decoded.queue_id, decoded.born_timestamp_ms, decoded.flag) == (queue_id, born_ms, flag)
    assert decoded.born_host == (record.unpack_ip(born_ip), port)
    assert (decoded.reconsume_times, decoded.prepared_transaction_offset) == (reconsume_times, prepared)
    assert decoded.body_crc == zlib.crc32(body) & 0x7FFFFFFF


def notices(data: bytes) -> bool:
    """Whether a reader of these bytes finds that they are not a whole record."""
    try:
        decoded = decode_record(data)
    except RecordError:
        return True
    return decoded.size != len(data) or not is_sealed(data, 0, decoded.size)


def test_every_truncation_is_noticed() -> None:
    data = sealed()
    assert not notices(data)
    for size in range(len(data)):
        assert notices(data[:size]), size
        assert notices(data[:size] + bytes(len(data) - size)), size


def test_every_flipped_byte_is_noticed() -> None:
    data = sealed()
    for at in range(len(data)):
        for flip in range(1, 256):
            damaged = bytearray(data)
            damaged[at] ^= flip
            assert notices(bytes(damaged)), (at, flip)


@settings(deadline=None, max_examples=500)
@given(st.binary(max_size=400))
def test_random_bytes_are_no_record_and_no_other_error(data: bytes) -> None:
    assert notices(data)


@settings(deadline=None, max_examples=500)
@given(st.data())
def test_damaged_records_raise_record_error_only(data: st.DataObject) -> None:
    """Any bytes over any part of the head and the lengths, with the checksum made right again."""
    buffer = bytearray(sealed())
    at = data.draw(st.integers(0, len(buffer) - 1))
    patch = data.draw(st.binary(min_size=1, max_size=12))
    buffer[at : at + len(patch)] = patch
    if len(buffer) > CRC_BYTES:
        seal(buffer, 0, len(buffer))
    try:
        decoded = decode_record(bytes(buffer))
    except RecordError:
        return
    assert decoded.size <= len(buffer)


@pytest.mark.parametrize(
    ("at", "patch", "sentence"),
    [
        (0, (169).to_bytes(4, "big"), "says 169 bytes with a body of 15; that does not fit"),
        (0, (-1).to_bytes(4, "big", signed=True), "says -1 bytes"),
        (4, bytes(4), "the magic at 4 is 0x00000000, not 0xDAA320A7"),
        (4, (0xCBD43194).to_bytes(4, "big"), "the magic at 4 is 0xCBD43194"),
        (36, (0x10).to_bytes(4, "big"), "IPv6 hosts"),
        (36, (0x20).to_bytes(4, "big"), "IPv6 hosts"),
        (84, (-1).to_bytes(4, "big", signed=True), "a body of -1"),
        (84, (4_000_000).to_bytes(4, "big"), "a body of 4000000"),
        (103, b"\x7f", "the topic of the record at 0 takes 127 bytes"),
        (103, b"\x80", "the topic of the record at 0 takes 128 bytes"),
        (104, b"\xff", "the topic of the record at 0 is not UTF-8"),
        (116, b"\x00\x31", "the properties of the record at 0 take 49 bytes"),
        (116, b"\xff\xff", "the properties of the record at 0 take 65535 bytes"),
    ],
)
def test_what_does_not_fit_is_said(at: int, patch: bytes, sentence: str) -> None:
    data = bytearray(by_hand())
    data[at : at + len(patch)] = patch
    with pytest.raises(RecordError) as caught:
        decode_record(bytes(data))
    assert sentence in str(caught.value)


def test_a_topic_that_only_fits_unsigned_is_rejected() -> None:
    """RocketMQ reads a signed byte there: what is written has to be readable by both."""
    tail = b"\x80" + b"t" * 128 + bytes(2) + CRC_PLACEHOLDER
    head = record.HEAD.pack(record.BODY_AT + len(tail), record.MESSAGE_MAGIC, *[0] * 15)
    with pytest.raises(RecordError, match="does not fit"):
        decode_record(head + tail)


@pytest.mark.parametrize("size", [32_767, 32_768, 65_535])
def test_properties_of_any_length_that_the_record_can_say_are_read(size: int) -> None:
    """Whatever an earlier version has stored; RocketMQ reads a signed short there, and producers may send less."""
    data = encode_record(**(USUAL | {"properties": b"k\x01" + b"v" * (size - CRC_BYTES - 3) + b"\x02"}))  # type: ignore[arg-type]
    assert decode_record(data).size == record.BODY_AT + 1 + 2 + 2 + size


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"topic": b"t" * 128}, "the topic takes 128 bytes; at most 127"),
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "the body takes 4,194,305 bytes; at most 4,194,304"),
        ({"properties": bytes(65_516)}, "the properties take 65,516 bytes; at most 65,515"),
        ({"queue_id": 2**31}, "a number does not fit into its field"),
        ({"flag": -(2**31) - 1}, "a number does not fit into its field"),
        ({"born_timestamp_ms": 2**63}, "a number does not fit into its field"),
    ],
)
def test_what_the_layout_cannot_hold_is_rejected(change: dict[str, bytes | int], sentence: str) -> None:
    with pytest.raises(RecordError) as caught:
        encode_record(**(USUAL | change))  # type: ignore[arg-type]
    assert sentence in str(caught.value)


def test_largest_record_is_as_large_as_promised() -> None:
    data = bytearray(
        encode_record(
            topic=b"t" * 127,
            body=bytes(record.BODY_BYTES_MAX),
            properties=bytes(PROPERTIES_BYTES_MAX - CRC_BYTES),
            queue_id=0,
            born_timestamp_ms=0,
            born_ip=0,
        )
    )
    seal(data, 0, len(data))
    assert len(data) == record.RECORD_BYTES_MAX
    assert not notices(bytes(data))


def test_smallest_record_is_as_small_as_promised() -> None:
    data = encode_record(topic=b"", body=b"", properties=b"", queue_id=0, born_timestamp_ms=0, born_ip=0)
    assert len(data) == record.RECORD_BYTES_MIN
    assert decode_record(data).topic == ""


def flag_for_crc(wanted: int) -> int:
    """The flag with which the record's full CRC-32 is `wanted`: the CRC is linear in the flag's 32 bits."""

    def crc(flag: int) -> int:
        data = sealed(flag=flag - 2**32 if flag >= 2**31 else flag)
        return zlib.crc32(data[:-CRC_BYTES])

    base = crc(0)
    rows = [(crc(1 << bit) ^ base, 1 << bit) for bit in range(32)]
    target, flag = wanted ^ base, 0
    for bit in reversed(range(32)):
        pivot = next(row for row in rows if row[0] >> bit & 1)
        rows.remove(pivot)
        rows = [(value ^ pivot[0], flags ^ pivot[1]) if value >> bit & 1 else (value, flags) for value, flags in rows]
        if target >> bit & 1:
            target, flag = target ^ pivot[0], flag ^ pivot[1]
    assert crc(flag) == wanted
    return flag - 2**32 if flag >= 2**31 else flag


@pytest.mark.parametrize(
    ("crc", "digits"),
    [
        (0, b"0000000000"),
        (1, b"1000000000"),
        (120, b"0210000000"),
        (0x7FFFFFFF, b"7463847412"),
        (0x80000000, b"0000000000"),  # the top bit is masked
        (0xFFFFFFFF, b"7463847412"),
    ],
)
def test_crc_has_31_bits_and_ten_digits_least_significant_first(crc: int, digits: bytes) -> None:
    data = sealed(flag=flag_for_crc(crc))
    assert data[-11:-1] == digits
    assert is_sealed(data, 0, len(data))  # a CRC of 0 is as valid as any other
    assert not notices(data)


def test_body_crc_of_zero_is_valid() -> None:
    body = bytes.fromhex("9d0ad96d")
    assert zlib.crc32(body) == 0
    data = sealed(body)
    assert decode_record(data).body_crc == 0
    assert not notices(data)


def test_body_crc_is_masked_to_31_bits() -> None:
    body = next(bytes([number]) for number in range(256) if zlib.crc32(bytes([number])) > CRC_MASK)
    assert decode_record(sealed(body)).body_crc == zlib.crc32(body) & 0x7FFFFFFF


@pytest.mark.parametrize("at", range(CRC_BYTES))
def test_crc_property_that_is_not_one_is_no_seal(at: int) -> None:
    data = bytearray(sealed())
    data[len(data) - CRC_BYTES + at] = ord("x")
    assert not is_sealed(data, 0, len(data))


@pytest.mark.parametrize(("at", "size"), [(0, 0), (0, 5), (0, 19), (0, 10_000), (10_000, 50), (100, -50), (0, -1)])
def test_seal_of_a_range_that_is_no_record_is_false(at: int, size: int) -> None:
    assert not is_sealed(sealed(), at, size)


def test_record_without_crc_property_keeps_its_properties() -> None:
    properties = b"KEYS\x01k\x02"
    tail = b"\x01t" + len(properties).to_bytes(2, "big") + properties
    filler = bytes(record.RECORD_BYTES_MIN)  # makes the body long enough for the smallest record
    size = record.BODY_AT + len(filler) + len(tail)
    numbers = [size, record.MESSAGE_MAGIC, *[0] * 14, len(filler)]
    data = record.HEAD.pack(*numbers) + filler + tail
    assert decode_record(data).properties == properties
    assert not is_sealed(data, 0, size)


def test_records_laid_end_to_end_are_read_one_by_one() -> None:
    parts = [sealed(bytes([number]) * number) for number in range(1, 20)]
    assert [one.body for one in record.iter_records(b"".join(parts))] == [bytes([n]) * n for n in range(1, 20)]
    assert list(record.iter_records(b"")) == []


def test_what_stands_behind_the_last_record_is_an_error() -> None:
    reader = record.iter_records(sealed() + b"\0" * 10)
    assert next(reader).body == BODY
    with pytest.raises(RecordError, match="10 bytes at 168: a record takes at least 111"):
        next(reader)


def test_blank_record_is_its_size_and_magic() -> None:
    assert record.encode_blank(500) == (500).to_bytes(4, "big") + bytes.fromhex("cbd43194")


@pytest.mark.parametrize("ip", ["0.0.0.0", "127.0.0.1", "192.168.0.128", "255.255.255.255"])
def test_ip_is_packed_and_unpacked(ip: str) -> None:
    assert -(2**31) <= record.pack_ip(ip) < 2**31
    assert record.unpack_ip(record.pack_ip(ip)) == ip


@pytest.mark.parametrize(
    "ip", ["", "::1", "localhost", "1.2.3", "127.1", "1.2.3.4 x", "1.2.3.256", "1.2.3.4\0", "１.2.3.4"]
)
def test_what_is_no_ipv4_address_is_rejected(ip: str) -> None:
    with pytest.raises(RecordError, match="is not an IPv4 address"):
        record.pack_ip(ip)
