"""`make help` lists everything that can be made, and nothing that cannot."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def phony_targets() -> set[str]:
    return {name for line in re.findall(r"^\.PHONY:(.*)$", MAKEFILE, re.MULTILINE) for name in line.split()}


def rules() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))


def test_every_target_has_a_line_in_make_help() -> None:
    run = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30
    )
    shown = {line.split()[0] for line in run.stdout.splitlines() if len(line.split()) > 1}
    assert phony_targets() == rules() == shown


def test_every_make_command_of_the_documents_exists() -> None:
    names = (
        "README.md",
        ".ci/run",
        "ARCHITECTURE.md",
        "SECURITY.md",
        "tests/robustness/README.md",
        "deploy/kubernetes/README.md",
    )
    for path in (ROOT / name for name in names):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        commands = re.findall(r"(?:^|`)make ((?:[a-z-]+ ?)+)", text, re.MULTILINE)
        named = {name for command in commands for name in command.split()}
        assert named <= rules(), (path.name, named - rules())


def test_a_target_installs_the_layer_that_it_runs() -> None:
    needed = dict(re.findall(r"^([a-z][a-z-]*): (\S+)  ## ", MAKEFILE, re.MULTILINE))
    assert {needed[name] for name in ("demo", "up", "invariants", "wheels")} == {"$(VENV)/.runtime"}
    assert {needed[name] for name in ("pipeline", "pipeline-live", "backfill")} == {"$(VENV)/.pipeline"}
    assert {needed[name] for name in ("test", "check", "load", "docs")} == {"setup"}
