"""Java's String.hashCode, which RocketMQ's consume queue and index store."""

from __future__ import annotations

from functools import lru_cache


@lru_cache(maxsize=65_536)
def java_string_hash(text: str) -> int:
    """The hash of `text` over its UTF-16 units: a signed 32-bit integer, s[0]*31^(n-1) + ... + s[n-1]."""
    units = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value
