"""How much goes in and out: plain numbers, added on the way of every frame, read beside it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(slots=True)
class Amount:
    """Messages and the bytes of their records, since the broker was opened."""

    messages: int = 0
    bytes: int = 0


class Traffic(Generic[KeyT]):
    """Amounts by topic, or by whatever else tells them apart."""

    def __init__(self) -> None:
        self._amounts: dict[KeyT, Amount] = {}

    def add(self, key: KeyT, messages: int, size: int) -> None:
        """So many messages with so many bytes more."""
        amount = self._amounts.get(key)
        if amount is None:
            amount = self._amounts[key] = Amount()
        amount.messages += messages
        amount.bytes += size

    def all(self) -> list[tuple[KeyT, Amount]]:
        """Every key with its amount; also for another thread than the one that adds."""
        return list(self._amounts.items())
