"""Bytes that are almost right, and bytes that are not at all.

Invariant: what comes out depends on the random numbers and the corpus alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from osenv import SeededRng

RANDOM_BYTES_MAX = 400
MUTATIONS_MAX = 4
RANDOM_SHARE = 0.1  # of the inputs has no model
# Numbers at which lengths and counts go wrong, in 4 bytes.
NUMBERS = (0, 1, 2, 7, 90, 91, 111, 127, 128, 255, 256, 32_767, 32_768, 65_535, 65_536, 1 << 22, (1 << 22) + 1)
EDGES = (0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF, 0xFFFF_FFFE, 0xDAA320A7, 0xCBD43194)
SEPARATORS = b"\x00\x01\x02\x7f\x80\xff "


def mutate(rng: SeededRng, corpus: Sequence[bytes]) -> bytes:
    """One input: a member of the corpus with up to four mutations, or random bytes."""
    if rng.random() < RANDOM_SHARE:
        return rng.randbytes(rng.randrange(0, RANDOM_BYTES_MAX))
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randrange(0, MUTATIONS_MAX + 1)):
        if not data:
            data = bytearray(rng.randbytes(8))
        rng.choice(_MUTATIONS)(rng, data, corpus)
    return bytes(data)


def _flip_bit(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    data[rng.randrange(0, len(data))] ^= 1 << rng.randrange(0, 8)


def _set_byte(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    data[rng.randrange(0, len(data))] = rng.randrange(0, 256)


def _set_separator(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    data[rng.randrange(0, len(data))] = rng.choice(SEPARATORS)


def _set_number(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = rng.randrange(0, max(1, len(data) - 3))
    number = rng.choice(EDGES) if rng.random() < 0.5 else rng.choice(NUMBERS)
    data[at : at + 4] = number.to_bytes(4, "big")


def _nudge_number(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    """A length that is one too large, or two too small."""
    at = rng.randrange(0, max(1, len(data) - 3))
    number = int.from_bytes(data[at : at + 4], "big") + rng.randrange(-2, 3)
    data[at : at + 4] = (number & 0xFFFF_FFFF).to_bytes(4, "big")


def _truncate(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    del data[rng.randrange(0, len(data)) :]


def _delete(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = rng.randrange(0, len(data))
    del data[at : at + rng.randrange(1, 9)]


def _insert(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = rng.randrange(0, len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(1, 9))


def _repeat(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = rng.randrange(0, len(data))
    data[at:at] = data[at : at + rng.randrange(1, 65)] * rng.randrange(1, 5)


def _splice(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    """The end of another member of the corpus."""
    other = rng.choice(corpus)
    data[rng.randrange(0, len(data)) :] = other[rng.randrange(0, max(1, len(other))) :]


def _zero(rng: SeededRng, data: bytearray, corpus: Sequence[bytes]) -> None:
    at = rng.randrange(0, len(data))
    count = min(rng.randrange(1, 65), len(data) - at)
    data[at : at + count] = bytes(count)


_MUTATIONS: tuple[Callable[[SeededRng, bytearray, Sequence[bytes]], None], ...] = (
    _flip_bit, _set_byte, _set_separator, _set_number, _nudge_number, _truncate, _delete, _insert, _repeat, _splice,
    _zero,
)  # fmt: skip
