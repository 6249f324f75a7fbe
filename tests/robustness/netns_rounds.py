"""Figure G7: rounds of real failures, each in a network of its own that is gone afterwards.

A seed is one round: a pair of brokers under load, four faults (netns_faults.py), and the judgement (netns_check.py).
What is found stays in a folder of its own, with the logs of all processes.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from netns_network import CLIENT, Network
from netns_round import OUTCOME
from sweep import Outcome

ROUND_MAX_S = 280.0  # far more than a round takes: its own waits end before


def play(seed: int, deadline: float = math.inf) -> Outcome:
    """One round. After `deadline` (of time.monotonic) it begins no further fault, and is none then."""
    folder = Path(tempfile.mkdtemp(prefix="hourglass-replication-"))
    outcome = _play(seed, folder, min(ROUND_MAX_S, deadline - time.monotonic()))
    if not outcome.violations:
        shutil.rmtree(folder)
        return outcome
    kept = f"logs and stores are kept in {folder}"
    return Outcome(outcome.executed, (*(f"seed {seed}: {one}" for one in outcome.violations), kept), outcome.counts)


def _play(seed: int, folder: Path, seconds: float) -> Outcome:
    path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    with Network() as network, (folder / "round.log").open("wb") as log:
        arguments = ["netns_round", str(seed), network.places.prefix, str(folder), str(seconds)]
        process = subprocess.Popen(
            [*network.places.command(CLIENT), sys.executable, "-m", "hourglass_local.child", *arguments],
            stdin=subprocess.PIPE,  # the leash, see child.py
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(ROUND_MAX_S)
        finally:
            process.kill()
            process.communicate()
    written = folder / OUTCOME
    if not written.exists():
        end = (folder / "round.log").read_text(errors="replace").splitlines()[-5:]
        return Outcome(0, (f"the round came to no end, code {process.returncode}: {' / '.join(end)}",))
    document = json.loads(written.read_text(encoding="utf-8"))
    return Outcome(document["executed"], tuple(document["violations"]), document["counts"])


class ReplicationSweep:
    """The rounds of `make robustness`; a seed is one of them."""

    name, figure, unit, goal, share = "replication", "G7", "rounds of real failures", 200, 20

    def run(self, seed: int, deadline: float) -> Outcome:
        return play(seed, deadline)
