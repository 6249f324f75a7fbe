"""`make robustness`: long sweeps for bugs, on every core, with the seed of whatever they find.

`python tests/robustness/runner.py [--hours 1] [--seeds 1-20,31] [--first-seed 1] [--only NAME] [--out FILE]`, or
`--replay NAME SEED` to see one seed again. The sweeps share the time in proportion to their `share`. With --seeds each
runs these and no clock ends them. A whole run writes docs/evidence/robustness.json. Exit code: 0 nothing found, 1 a
violation, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from ledger import Ledger
from rich.console import Console
from rich.table import Table
from sweep import Outcome
from sweeps import NEEDS, SWEEPS
from worker import EXIT_INTERRUPTED, EXIT_VIOLATION, SEEDS_TIME_S, Worker, replay

from hourglass_loadtest.machine import describe_run

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs/evidence/robustness.json"
SLICE_S = 60.0  # a core stays that long with one sweep
SLICES_MIN = 6  # of every sweep, in a short run
PROGRESS_S = 10.0
SHOWN_CHARACTERS = 400  # of a violation; all of it is in the evidence
PIPE_COLUMNS = 120


class Run:
    """One run: a thread for each core, each with one worker process at a time."""

    def __init__(self, ledger: Ledger, time_s: float, cores: int, console: Console) -> None:
        self._ledger, self._time_s, self._cores, self._console = ledger, time_s, cores, console
        self._slice_s = min(SLICE_S, time_s / SLICES_MIN / len(ledger.accounts))
        self._begin = time.monotonic()
        self._end = self._begin + time_s
        self._stopping = threading.Event()
        self._workers: set[Worker] = set()
        self._printed = self._begin
        self._print_lock = threading.Lock()

    def run(self) -> None:
        """Until the time is over or the seeds are done; KeyboardInterrupt ends it early."""
        threads = [threading.Thread(target=self._work, name=f"core-{number}") for number in range(self._cores)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except KeyboardInterrupt:
            self._stopping.set()
            for worker in list(self._workers):
                worker.interrupt()
            for worker in list(self._workers):
                worker.stop()
            for thread in threads:
                thread.join()
            raise

    def _work(self) -> None:
        while not self._over() and (name := self._ledger.choose(self._slice_s)) is not None:
            worker = Worker(name)
            self._workers.add(worker)
            try:
                self._slice(worker)
            finally:
                worker.close()
                self._workers.discard(worker)
                self._ledger.give_back(name, self._slice_s)

    def _slice(self, worker: Worker) -> None:
        slice_end = time.monotonic() + self._slice_s
        while worker.alive and not self._over() and time.monotonic() < slice_end:
            seed = self._ledger.take_seed(worker.name)
            if seed is None:
                return
            began = time.monotonic()
            outcome = worker.run(seed, self._end)
            if self._stopping.is_set():
                return  # it was killed on purpose
            self._ledger.record(worker.name, seed, outcome, began)
            self._say(worker.name, seed, outcome)

    def _over(self) -> bool:
        return self._stopping.is_set() or time.monotonic() >= self._end

    def _say(self, name: str, seed: int, outcome: Outcome) -> None:
        with self._print_lock:
            for violation in outcome.violations:
                text = f"VIOLATION {name} seed {seed}: {violation}"
                self._console.print(text[:SHOWN_CHARACTERS], style="red", markup=False)
            if outcome.violations:
                self._console.print(f"  again: {replay_command(name, seed)}", markup=False)
            if (now := time.monotonic()) - self._printed >= PROGRESS_S:
                self._printed = now
                done = ", ".join(
                    f"{account.sweep.name} {account.executed:,}" for account in self._ledger.accounts.values()
                )
                self._console.print(f"{now - self._begin:6.0f} s  {done}; last: {name} seed {seed}", markup=False)


def replay_command(name: str, seed: int) -> str:
    """What shows this seed again."""
    return f".venv/bin/python tests/robustness/runner.py --replay {name} {seed}"


def table(ledger: Ledger) -> Table:
    """What was tried, beside the figures to reach."""
    made = Table("figure", "sweep")
    for heading in ("executed", "goal", "seeds", "core s", "violations"):
        made.add_column(heading, justify="right")
    for account in ledger.accounts.values():
        seeds = f"{min(account.seeds)} to {max(account.seeds)}" if account.seeds else "-"
        sweep = account.sweep
        numbers = (f"{account.executed:,}", f"{sweep.goal:,}", seeds, f"{account.used_s:,.0f}")
        made.add_row(sweep.figure, f"{sweep.name}: {sweep.unit}", *numbers, str(len(account.violations)))
    return made


def parse_seeds(text: str) -> list[int]:
    """`1-3,17` is 1, 2, 3 and 17."""
    ranges = [part.partition("-") for part in text.split(",")]
    return [seed for first, _, last in ranges for seed in range(int(first), int(last or first) + 1)]


def _able(names: list[str]) -> tuple[list[str], list[str]]:
    """(the sweeps that this machine can run, a sentence for each other one)."""
    sys.path.append(str(ROOT / "tests/capabilities"))  # pytest knows it from pyproject.toml; this is a script
    from capabilities import absence

    missing = {name: absence(NEEDS[name]) for name in names if name in NEEDS}
    left_out = [f"{name} is left out: {why.reason}" for name, why in missing.items() if why is not None]
    return [name for name in names if missing.get(name) is None], left_out


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="runner.py", description="Long sweeps for bugs.")
    parser.add_argument("--hours", type=float, default=1.0, help="default 1; fractions are allowed")
    parser.add_argument("--seeds", type=parse_seeds, help="as 1-20,31: run these of each sweep, and ignore the clock")
    parser.add_argument("--first-seed", type=int, default=1, help="where seeds begin without --seeds")
    parser.add_argument("--only", choices=SWEEPS, action="append", help="this sweep; may be repeated")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="workers at a time")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"without it a whole run writes {EVIDENCE.name}")
    parser.add_argument("--replay", nargs=2, metavar=("NAME", "SEED"), help="run one seed of one sweep, with its log")
    return parser


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = _parser()
    options = parser.parse_args(arguments)
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    if options.replay:
        name, seed = options.replay
        if name not in SWEEPS:
            parser.error(f"the sweeps are {', '.join(SWEEPS)}, not {name}")
        return replay(name, int(seed))
    logging.getLogger().addHandler(logging.NullHandler())  # sweeps make damaged stores to count what they will do
    names, left_out = _able(options.only or list(SWEEPS))
    for sentence in left_out:
        console.print(sentence, markup=False)
    if not names:
        return EXIT_VIOLATION
    ledger = Ledger([SWEEPS[name] for name in names], options.seeds, first_seed=options.first_seed)
    time_s = SEEDS_TIME_S if options.seeds else options.hours * 3600
    for number in (signal.SIGINT, signal.SIGTERM):  # SIGINT too: in the background of a shell it is ignored
        signal.signal(number, _interrupt)
    head, began = describe_run(ROOT), time.monotonic()
    interrupted = False
    try:
        Run(ledger, time_s, options.cores, console).run()
    except KeyboardInterrupt:
        interrupted = True
    console.print(table(ledger))
    out = options.out or (None if options.only or options.seeds or interrupted else EVIDENCE)
    if out is not None:
        document = {
            **head,
            "duration_s": round(time.monotonic() - began, 1),
            "sweeps": {name: account.to_json() for name, account in ledger.accounts.items()},
            "left_out": left_out,
        }
        out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        console.print(f"written to {out}", markup=False)
    return EXIT_INTERRUPTED if interrupted else EXIT_VIOLATION if ledger.failed else 0


if __name__ == "__main__":
    sys.exit(main())
