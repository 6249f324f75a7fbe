"""A program whose wall clock is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = "import json, sys, time; print(json.dumps([time.time(), time.time_ns(), sys.argv[1:]]))"
AHEAD_S = 400
SLACK_S = 60  # for the start of the program


def test_program_is_ahead_and_has_its_arguments(tmp_path: Path) -> None:
    (tmp_path / "said.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "hourglass_local.clock_ahead", f"{AHEAD_S * 1000}", "said", "one", "two"]
    before_s = time.time()
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, check=True)
    now_s, now_ns, arguments = json.loads(said.stdout)
    assert arguments == ["one", "two"]
    for its_s in (now_s, now_ns / 1e9):
        assert AHEAD_S <= its_s - before_s < AHEAD_S + SLACK_S
