"""Java's String.hashCode, which RocketMQ's consume queue and index store.

The hash of bytes is the number that they are as digits to the base 31. A byte above 30 is no digit, but 31 q + r is:
two numbers of digits then, which int() reads in C. A UTF-16 unit is two bytes, 256 high + low.
"""

from __future__ import annotations

from functools import lru_cache

_BASE = 31
_DIGITS = b"0123456789ABCDEFGHIJKLMNOPQRSTU"
_REMAINDERS = bytes(_DIGITS[code % _BASE] for code in range(256))
_QUOTIENTS = bytes(_DIGITS[code // _BASE] for code in range(256))
_PART_BYTES = 256  # int() takes time by the square of the digits, and refuses more than 4,300
_PART_POWER = pow(_BASE, _PART_BYTES, 1 << 32)


@lru_cache(maxsize=4_096)  # producers use few tags, and a miss costs a microsecond
def java_string_hash(text: str) -> int:
    """The hash of `text` over its UTF-16 units: a signed 32-bit integer, s[0]*31^(n-1) + ... + s[n-1]."""
    if text.isascii():
        value = byte_string_hash(text.encode())
    else:
        units = text.encode("utf-16-be", "surrogatepass")
        value = 256 * byte_string_hash(units[::2]) + byte_string_hash(units[1::2])
    value &= 0xFFFF_FFFF
    return value - 0x1_0000_0000 if value & 0x8000_0000 else value


def byte_string_hash(data: bytes | bytearray) -> int:
    """The same over bytes instead of units, not reduced to 32 bits: the hash of text that is ASCII."""
    if len(data) > _PART_BYTES:
        part = data[-_PART_BYTES:]
        value, power = byte_string_hash(part), _PART_POWER
        for at in range(len(data) - 2 * _PART_BYTES, -_PART_BYTES, -_PART_BYTES):
            value += power * byte_string_hash(data[max(at, 0) : at + _PART_BYTES])
            power = power * _PART_POWER & 0xFFFF_FFFF
        return value
    if not data:
        return 0
    return int(data.translate(_REMAINDERS), _BASE) + _BASE * int(data.translate(_QUOTIENTS), _BASE)
