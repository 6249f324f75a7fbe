"""A process that runs the seeds of one sweep for the runner: `python worker.py NAME`, or NAME and SEED for a replay.

On standard input comes a line `seed deadline` at a time, and a line of JSON goes back for each on standard output. What
a sweep or the code under test prints there by itself goes to standard error. The process ends with its input. A replay
prints its log and what it finds.

hypothesis draws numbers that stand in the modules of its process, so that a seed is the same history only in a process
that has loaded the same code.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from sweep import Outcome, Sweep

HANG_S = 900  # so long may a seed go on after its deadline; a round of `shop` takes five minutes and more
CLEAN_UP_S = 30
SEEDS_TIME_S = 24 * 3600.0  # without a deadline
EXIT_VIOLATION, EXIT_INTERRUPTED = 1, 130
ENVIRONMENT = {"PYTHONHASHSEED": "0"}  # sets of texts have an order that a seed brings back


class Worker:
    """The runner's side. Not for several threads at once, except `kill`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            _command(name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is the runner's alone
        )

    def run(self, seed: int, deadline: float) -> Outcome:
        """What `seed` came to. A worker that dies or hangs over it is a violation, and this worker's last one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        hung = threading.Event()

        def give_up() -> None:
            hung.set()
            self.stop()

        watchdog = threading.Timer(max(0.0, deadline - time.monotonic()) + HANG_S, give_up)
        watchdog.start()
        try:
            self._process.stdin.write(f"{seed} {deadline}\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            watchdog.cancel()
        if not line:
            code = self._process.wait()
            sentence = f"hung {HANG_S} s past its deadline" if hung.is_set() else f"its process died with code {code}"
            return Outcome(0, (sentence,))
        document = json.loads(line)
        return Outcome(document["executed"], tuple(document["violations"]), document["counts"])

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Ask it to end, as Ctrl-C would: it takes down what it has mounted and started. Harmless when it has ended."""
        if self.alive:
            self._process.send_signal(signal.SIGINT)

    def stop(self) -> None:
        """The same, and end it when it does not."""
        self.interrupt()
        try:
            self._process.wait(timeout=CLEAN_UP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it at once, with whatever is in its process group. Harmless when it has ended."""
        if self.alive:
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Let it end, or see that it does."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()
        self._process.stdout.close()


def replay(name: str, seed: int) -> int:
    """Run one seed in a process like those of a run, with its log; its exit code."""
    return subprocess.run(_command(name, str(seed)), env=os.environ | ENVIRONMENT, check=False).returncode


def _command(*arguments: str) -> list[str]:
    return [sys.executable, str(Path(__file__).absolute()), *arguments]


def _show(sweep: Sweep, seed: int) -> int:
    """The process of a replay: run the seed, and print what it finds."""
    outcome = sweep.run(seed, time.monotonic() + SEEDS_TIME_S)
    for violation in outcome.violations:
        print(f"VIOLATION {violation}")
    print(f"{sweep.name} seed {seed}: {outcome.executed:,} {sweep.unit}, {dict(outcome.counts)}")
    return EXIT_VIOLATION if outcome.violations else 0


def serve(sweep: Sweep) -> None:
    """The worker's side: answer until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        seed, deadline = line.split()
        try:
            outcome = sweep.run(int(seed), float(deadline))
        except Exception as error:
            logging.getLogger(__name__).exception("seed %s", seed)
            outcome = Outcome(0, (f"{type(error).__name__}: {error}",))
        print(json.dumps(dataclasses.asdict(outcome)), file=answers, flush=True)


if __name__ == "__main__":
    from sweeps import SWEEPS

    signal.signal(signal.SIGINT, signal.default_int_handler)  # the runner's, who may have been told to ignore it
    try:
        if len(sys.argv) > 2:
            logging.basicConfig(level=logging.WARNING)
            sys.exit(_show(SWEEPS[sys.argv[1]], int(sys.argv[2])))
        logging.getLogger().addHandler(logging.NullHandler())  # thousands of damaged stores complain in there
        serve(SWEEPS[sys.argv[1]])
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
