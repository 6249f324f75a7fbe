"""Figure G5: bytes of a store are flipped, sectors replaced by older or foreign ones; nothing wrong is read, no other
record is lost, and the damage shows (flip_check.py). To see one fault again:

    .venv/bin/python tests/robustness/flips.py random|next SEED NUMBER
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from flip_check import Judge
from flip_faults import Fault, byte_count, flip_number, random_flip, random_sector
from flip_store import build_images
from simulation import few_collections, run_simulation
from sweep import Outcome

from osenv import SeededRng

FLIPS, RANDOM_FAULTS = 1_000, 100  # of one seed
SECTOR_SHARE = 0.1  # of the random faults
VIOLATIONS_MAX = 20  # of one seed
COMMAND = ".venv/bin/python tests/robustness/flips.py"


@cache
def judges() -> tuple[Judge, Judge]:
    """Of the store after a clean stop, and after a kill."""

    async def make() -> tuple[Judge, Judge]:
        clean, killed = await build_images()
        return await Judge.of(clean), await Judge.of(killed)

    return run_simulation(make())


@dataclass(frozen=True, slots=True)
class Trial:
    """One fault of one image; `again` are the arguments that show it once more."""

    judge: Judge
    fault: Fault
    rng: SeededRng
    again: str


def random_fault(seed: int, number: int) -> Trial:
    """Any byte, and now and then a sector."""
    rng, judge = _rng(seed, number), judges()[number % 2]
    make = random_sector if rng.random() < SECTOR_SHARE else random_flip
    return Trial(judge, make(judge.image, rng), rng, f"random {seed} {number}")


def next_byte(seed: int, number: int) -> Trial:
    """Byte `number` of the `FLIPS` ones of this seed: seed 1 has the first ones of the first image.

    When all bytes of both images are through, it goes on from the front.
    """
    rng, (clean, killed) = _rng(seed, number), judges()
    at = ((seed - 1) * FLIPS + number) % (byte_count(clean.image) + byte_count(killed.image))
    judge, at = (clean, at) if at < byte_count(clean.image) else (killed, at - byte_count(clean.image))
    return Trial(judge, flip_number(judge.image, at, rng.randrange(1, 256)), rng, f"next {seed} {number}")


def _rng(seed: int, number: int) -> SeededRng:
    return SeededRng(seed * 1_000_000 + number)


def run_trials(trials: Iterable[Trial], deadline: float = float("inf")) -> Outcome:
    """Try each of them, or as many as there is time for."""
    counts, violations = Counter[str](), list[str]()

    async def run() -> int:
        done = 0
        for trial in trials:
            if time.monotonic() > deadline or len(violations) >= VIOLATIONS_MAX:
                break
            wrong, shown = await trial.judge.judge(trial.fault, trial.rng)
            violations.extend(f"{one}; again: {COMMAND} {trial.again}" for one in wrong)
            counts[shown or "unnoticed"] += 1
            done += 1
        return done

    judges()
    with few_collections():
        return Outcome(run_simulation(run()), tuple(violations), dict(counts))


class FlipSweep:
    """The flips of `make robustness`; a seed is the next `FLIPS` bytes and `RANDOM_FAULTS` random bytes and sectors."""

    name, figure, unit, share = "flips", "G5", "bytes flipped", 25

    @property
    def goal(self) -> int:
        """Every byte of both images, and a tenth as many random faults."""
        return sum(byte_count(judge.image) for judge in judges()) * (FLIPS + RANDOM_FAULTS) // FLIPS

    def run(self, seed: int, deadline: float) -> Outcome:
        def trials() -> Iterator[Trial]:
            yield from (next_byte(seed, number) for number in range(FLIPS))
            yield from (random_fault(seed, number) for number in range(RANDOM_FAULTS))

        return run_trials(trials(), deadline)


def main(arguments: Sequence[str]) -> int:
    """Show one fault again."""
    kind, seed, number = arguments
    trial = {"random": random_fault, "next": next_byte}[kind](int(seed), int(number))
    outcome = run_trials([trial])
    print(trial.fault.text, *outcome.counts, *outcome.violations, sep="\n")
    return int(bool(outcome.violations))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
