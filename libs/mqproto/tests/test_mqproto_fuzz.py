"""Arbitrary bytes and text into everything here that decodes: an answer or the documented error (figure G9).

The long version is tests/robustness/fuzz.py.
"""

from __future__ import annotations

from contextlib import suppress

import hypothesis.strategies as st
from hypothesis import example, given

from mqproto.names import IllegalNameError, check_group, check_topic, parse_address_list
from mqproto.properties import PropertiesError, decode_properties, encode_properties
from mqproto.record import BODY_AT, RecordError, decode_record, encode_record, is_sealed, iter_records, seal

RECORD = encode_record(
    topic=b"topic", body=b"body", properties=b"TAGS\x01paid\x02", queue_id=1, born_timestamp_ms=2, born_ip=3
)


def sealed_record() -> bytes:
    buffer = bytearray(RECORD)
    seal(buffer, 0, len(buffer))
    return bytes(buffer)


def decodes(data: bytes, at: int = 0) -> bool:
    try:
        record = decode_record(data, at)
    except RecordError:
        return False
    assert 0 < record.size <= len(data) - at
    return True


@given(st.binary(max_size=300), st.integers(0, 300))
def test_arbitrary_bytes_are_no_record(data: bytes, at: int) -> None:
    assert not decodes(data, at)


@given(st.integers(0, len(RECORD) - 1), st.binary(min_size=1, max_size=8))
def test_a_record_with_a_few_other_bytes_decodes_or_is_rejected(at: int, other: bytes) -> None:
    data = RECORD[:at] + other + RECORD[at + len(other) :]
    if decodes(data):
        assert list(iter_records(data[: decode_record(data).size]))


def test_a_record_cut_off_anywhere_is_rejected() -> None:
    assert decodes(RECORD)
    assert not any(decodes(RECORD[:length]) for length in range(len(RECORD)))


def test_every_bit_of_a_sealed_record_is_guarded_by_its_seal() -> None:
    data = sealed_record()
    assert is_sealed(data, 0, len(data))
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]
            assert not is_sealed(flipped, 0, len(flipped)), (at, bit)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_arbitrary_bytes_are_not_sealed(data: bytes, size: int) -> None:
    assert not is_sealed(data, 0, min(size, len(data)))


@given(st.binary(max_size=200))
@example(b"\x01\x02")
@example(b"a\x01b")
@example(b"a\x01b\x01c\x02")
@example(b"\xff\x01\x02")
def test_properties_are_rejected_or_come_back_the_same(data: bytes) -> None:
    try:
        properties = decode_properties(data)
    except PropertiesError:
        return
    assert decode_properties(encode_properties(properties)) == properties


@given(st.integers(BODY_AT - 4, len(RECORD) - 1), st.integers(0, 255))
def test_a_length_inside_of_a_record_that_is_wrong_is_rejected_or_harmless(at: int, value: int) -> None:
    data = RECORD[:at] + bytes((value,)) + RECORD[at + 1 :]
    if decodes(data):
        assert decode_record(data).size == len(RECORD)


@given(st.text(max_size=140))
@example("a" * 127)
@example("127.0.0.1:9876;;")
def test_any_text_is_a_name_or_an_address_or_rejected(text: str) -> None:
    for check in (check_topic, check_group):
        with suppress(IllegalNameError):
            check(text)
    try:
        addresses = parse_address_list(text)
    except ValueError:
        return
    assert all(0 < address.port < 65_536 for address in addresses)
