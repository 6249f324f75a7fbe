"""Who runs next, and what came of it: the books of a robustness run.

Invariants: no seed of a sweep is handed out twice; of the sweeps that still have work, the one that has had the least
time for its share is next.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sweep import Outcome, Sweep


@dataclass
class Account:
    """One sweep's part of the run; times in seconds of one core."""

    sweep: Sweep
    waiting: list[int] | None  # the seeds to run, or None for all from `next_seed` on
    next_seed: int = 1
    used_s: float = 0.0
    promised_s: float = 0.0
    executed: int = 0
    seeds: list[int] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[tuple[int, str]] = field(default_factory=list)

    @property
    def has_work(self) -> bool:
        return self.waiting is None or bool(self.waiting)

    def take_seed(self) -> int:
        if self.waiting is not None:
            return self.waiting.pop(0)
        self.next_seed += 1
        return self.next_seed - 1

    def to_json(self) -> dict[str, Any]:
        """For docs/evidence/robustness.json."""
        return {
            "figure": self.sweep.figure,
            "unit": self.sweep.unit,
            "goal": self.sweep.goal,
            "executed": self.executed,
            "seeds": len(self.seeds),
            "seeds_from": min(self.seeds, default=None),
            "seeds_to": max(self.seeds, default=None),
            "core_seconds": round(self.used_s, 1),
            "counts": dict(sorted(self.counts.items())),
            "violations": [{"seed": seed, "what": what} for seed, what in self.violations],
        }


class Ledger:
    """Thread-safe."""

    def __init__(self, sweeps: Sequence[Sweep], seeds: Sequence[int] | None, *, first_seed: int = 1) -> None:
        self.accounts = {
            sweep.name: Account(sweep, None if seeds is None else list(seeds), first_seed) for sweep in sweeps
        }
        self._lock = threading.Lock()

    def choose(self, slice_s: float) -> str | None:
        """The sweep whose turn it is for about `slice_s`, to be given back; None when no sweep has work left."""
        with self._lock:
            able = [account for account in self.accounts.values() if account.has_work]
            if not able:
                return None
            chosen = min(able, key=lambda account: (account.used_s + account.promised_s) / account.sweep.share)
            chosen.promised_s += slice_s
            return chosen.sweep.name

    def give_back(self, name: str, slice_s: float) -> None:
        """The slice of `choose` is over; what it really took was told to `record`."""
        with self._lock:
            self.accounts[name].promised_s -= slice_s

    def take_seed(self, name: str) -> int | None:
        """The sweep's next seed, if it has work left."""
        with self._lock:
            account = self.accounts[name]
            return account.take_seed() if account.has_work else None

    def record(self, name: str, seed: int, outcome: Outcome, began: float) -> None:
        """What a task came to, which began at `began` (of time.monotonic)."""
        with self._lock:
            account = self.accounts[name]
            account.used_s += time.monotonic() - began
            account.executed += outcome.executed
            account.seeds.append(seed)
            account.counts.update(outcome.counts)
            account.violations += [(seed, violation) for violation in outcome.violations]

    @property
    def failed(self) -> bool:
        return any(account.violations for account in self.accounts.values())
