"""Java's String.hashCode: values that a JVM gave, and the definition itself."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from mqproto.properties import java_string_hash


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
