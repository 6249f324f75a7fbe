"""Message properties: their text form, and what has no place in it; Java's String.hashCode: values that a JVM gave."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mqproto.properties import (
    EncodedProperties,
    PropertiesError,
    decode_properties,
    encode_properties,
    java_string_hash,
    property_start,
    property_value,
)

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"))


def test_text_form_is_name_1_value_2() -> None:
    assert encode_properties({"KEYS": "a b", "TAGS": "grün", "empty": ""}) == (
        b"KEYS\x01a b\x02TAGS\x01gr\xc3\xbcn\x02empty\x01\x02"
    )
    assert encode_properties({}) == b""


@given(st.dictionaries(TEXT.filter(bool), TEXT))
def test_properties_come_back_as_they_were(properties: dict[str, str]) -> None:
    assert decode_properties(encode_properties(properties)) == properties


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "v"), ("a\x01", "v"), ("a\x02", "v"), ("a", "\x01"), ("a", "v\x02"), ("a", "b\x02c\x01d")],
)
def test_separators_and_empty_names_are_rejected(name: str, value: str) -> None:
    with pytest.raises(PropertiesError, match="names are not empty"):
        encode_properties({"fine": "x", name: value})


@pytest.mark.parametrize("text", ["\ud800", "a\udfff"])
def test_text_that_utf8_cannot_hold_is_rejected(text: str) -> None:
    with pytest.raises(PropertiesError, match="UTF-8"):
        encode_properties({"name": text})


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\xff\x01v\x02", "not UTF-8: invalid start byte at byte 0"),
        (b"name\x02", "is not one name"),
        (b"\x01value\x02", "is not one name"),
        (b"a\x01b\x01c\x02", "is not one name"),
        (b"rest", "is not one name"),
    ],
)
def test_bytes_that_are_no_properties_are_rejected(data: bytes, sentence: str) -> None:
    with pytest.raises(PropertiesError) as caught:
        decode_properties(data)
    assert sentence in str(caught.value)


def test_missing_last_separator_and_repeated_names_are_read_as_rocketmq_does() -> None:
    assert decode_properties(b"a\x011\x02b\x012\x02a\x013") == {"a": "3", "b": "2"}


@given(st.binary(max_size=200))
def test_random_bytes_raise_properties_error_only(data: bytes) -> None:
    try:
        properties = decode_properties(data)
    except PropertiesError:
        return
    assert decode_properties(encode_properties(properties)) == properties


@given(st.dictionaries(TEXT.filter(bool), TEXT), TEXT.filter(bool))
def test_a_single_property_is_found_where_it_stands(properties: dict[str, str], name: str) -> None:
    encoded = EncodedProperties(encode_properties(properties))
    assert encoded.get(name) == properties.get(name)
    assert {one: encoded.get(one) for one in properties} == properties


def test_a_single_property_is_no_part_of_another_and_the_last_of_its_name() -> None:
    encoded = EncodedProperties(b"long\x01ng\x02ng\x011\x02empty\x01\x02ng\x012\x02open\x01end")
    assert [encoded.get(name) for name in ("ng", "long", "empty", "open", "g", "")] == [
        "2",
        "ng",
        "",
        "end",
        None,
        None,
    ]


def test_of_several_properties_with_one_name_the_last_counts_wherever_it_is_asked_for() -> None:
    text = b"\x02TAGS\x01first\x02xTAGS\x01other\x02TAGS\x01last\x02zTAGS\x01no\x02"
    assert property_value(b"TAGS\x01" + text, property_start("TAGS"), 5, 5 + len(text)) == b"last"
    assert EncodedProperties(text).get("TAGS") == decode_properties(text)["TAGS"] == "last"


def test_a_single_property_that_is_not_utf8_says_so_and_keeps_no_other_from_being_read() -> None:
    encoded = EncodedProperties(b"bad\x01\xff\x02good\x01x\x02")
    assert encoded.get("good") == "x"
    with pytest.raises(PropertiesError, match="property 'bad' is not UTF-8: invalid start byte"):
        encoded.get("bad")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("Hello, World!", 1_498_789_909),
        ("Aa", 2112),
        ("BB", 2112),
        ("polygenelubricants", -2_147_483_648),
        ("ä", 228),
        ("😀", 0xD83D * 31 + 0xDE00),  # two UTF-16 units
    ],
)
def test_known_values(text: str, value: int) -> None:
    assert java_string_hash(text) == value


def test_lone_surrogates_have_a_hash_as_in_java() -> None:
    assert java_string_hash("\ud83d") == 0xD83D


@given(st.text(max_size=40), st.sampled_from([1, 16, 100]))
def test_hash_is_the_polynomial_in_signed_32_bits(part: str, times: int) -> None:
    text = part * times
    units = memoryview(text.encode("utf-16-le")).cast("H").tolist()
    total = sum(unit * 31 ** (len(units) - 1 - at) for at, unit in enumerate(units))
    assert java_string_hash(text) == (total + 2**31) % 2**32 - 2**31
