"""What a sweep is: a fault, tried again and again from seeds, and what must stay true each time.

Invariant: a sweep's `run` depends on nothing but its seed and its deadline; whatever it finds is found again from the
same seed with enough time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one seed came to. `executed` counts in the sweep's unit; a violation is a sentence for people."""

    executed: int
    violations: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


class Sweep(Protocol):
    """One of the figures of docs/reference/faults.md#figures."""

    @property
    def name(self) -> str:
        """For the command line."""

    @property
    def figure(self) -> str:
        """Its number in docs/reference/faults.md#figures, as `G5`."""

    @property
    def unit(self) -> str:
        """What is counted, in the plural."""

    @property
    def goal(self) -> int:
        """How many of them `make robustness` is to reach, over all its runs of one state of the code."""

    @property
    def share(self) -> int:
        """Parts of the machine's time that it gets beside the other sweeps."""

    def run(self, seed: int, deadline: float) -> Outcome:
        """Try what `seed` says, and stop early at `deadline` (of time.monotonic)."""
