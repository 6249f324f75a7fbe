"""How late deliveries are: a histogram whose classes grow with the lateness.

Eight classes to each doubling, so a quantile is at most an eighth above the true one; up to 15 ms each millisecond has
a class of its own.
"""

from __future__ import annotations

from collections.abc import Iterable

_SPLIT_BITS = 3  # classes to a doubling, as a power of two


class Lateness:
    """Milliseconds of what was counted; nothing is forgotten."""

    def __init__(self) -> None:
        self.count = 0
        self.max_ms = 0
        self._counts: list[int] = []

    def add(self, lateness_ms: Iterable[int]) -> None:
        """Count these; a negative one counts as 0."""
        for value in lateness_ms:
            number = _class_of(max(0, value))
            if number >= len(self._counts):
                self._counts += [0] * (number + 1 - len(self._counts))
            self._counts[number] += 1
            self.count += 1
            self.max_ms = max(self.max_ms, value)

    def quantile_ms(self, share: float) -> int:
        """The lateness that `share` (0 to 1) of what was counted does not exceed; 0 when nothing was counted."""
        wanted, seen = share * self.count, 0
        for number, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_upper_bound(number), self.max_ms)
        return 0


def _class_of(value: int) -> int:
    shift = max(0, value.bit_length() - _SPLIT_BITS - 1)
    return (shift << _SPLIT_BITS) + (value >> shift)


def _upper_bound(number: int) -> int:
    shift = max(0, (number >> _SPLIT_BITS) - 1)
    return ((number - (shift << _SPLIT_BITS) + 1) << shift) - 1
