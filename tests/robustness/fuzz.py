"""Figure G9, the record part: fuzzed bytes into everything that decodes records, batches and the store's small files.

Only documented errors may come out, each answer within a second of processor time, and what is accepted has to keep its
promises (fuzz_targets.py).
"""

from __future__ import annotations

import time
from collections import Counter
from functools import cache

from fuzz_targets import Target, targets
from mutations import mutate
from sweep import Outcome

from osenv import SeededRng

INPUTS = 10_000  # of one seed
INPUT_TIME_MAX_S = 1.0
SHOWN_BYTES = 400
LOOK_AT_CLOCK_EVERY = 100


@cache
def _turns() -> tuple[Target, ...]:
    return tuple(target for target in targets() for _ in range(target.weight))


def try_input(target: Target, data: bytes) -> str:
    """`accepted`, `rejected`, or what is wrong, as `!sentence`."""
    began = time.thread_time()
    try:
        result = "accepted" if target.check(data) else "rejected"
    except Exception as error:
        return f"!{type(error).__name__}: {error}"
    if (took := time.thread_time() - began) > INPUT_TIME_MAX_S:
        return f"!took {took:.1f} s of processor time"
    return result


def run_fuzz(seed: int, inputs: int, deadline: float = float("inf")) -> Outcome:
    """`inputs` inputs, or as many as there is time for; the first violation of each target is told."""
    rng, turns = SeededRng(seed), _turns()
    counts: Counter[str] = Counter()
    violations: dict[str, str] = {}
    done = 0
    while done < inputs and (done % LOOK_AT_CLOCK_EVERY or time.monotonic() < deadline):
        target = turns[done % len(turns)]
        data = mutate(rng, target.corpus)
        done += 1
        result = try_input(target, data)
        if result.startswith("!"):
            counts["violations"] += 1
            shown = data[:SHOWN_BYTES].hex() + ("..." if len(data) > SHOWN_BYTES else "")
            violations.setdefault(target.name, f"{target.name}, input {done}: {result[1:]}; {len(data)} bytes: {shown}")
        else:
            counts[f"{target.name} {result}"] += 1
    return Outcome(done, tuple(violations.values()), dict(counts))


class FuzzSweep:
    """The fuzzing of `make robustness`; a seed is `INPUTS` inputs."""

    name, figure, unit, goal, share = "fuzz", "G9", "fuzzed inputs of records and files", 10_000_000, 10

    def run(self, seed: int, deadline: float) -> Outcome:
        return run_fuzz(seed, INPUTS, deadline)
