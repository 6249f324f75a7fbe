"""Random numbers as a port, so that a run can be repeated from its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Rng(Protocol):
    """What the project may ask of chance."""

    def random(self) -> float:
        """A float in [0.0, 1.0)."""

    def randrange(self, start: int, stop: int) -> int:
        """An integer in [start, stop)."""

    def choice(self, options: Sequence[T]) -> T:
        """One of `options`; raises IndexError when there is none."""

    def randbytes(self, count: int) -> bytes:
        """`count` random bytes."""


class SystemRng(random.SystemRandom):
    """The operating system's source: unpredictable, for ids that meet outside this process."""


class SeededRng(random.Random):
    """Repeatable from `seed`: for tests, simulations and load."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.seed_used = seed
