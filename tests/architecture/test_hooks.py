"""`make hooks` has git reject a commit that `make check` rejects."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
IDENTITY = ("-c", "user.name=A", "-c", "user.email=a@example.invalid")


def test_a_commit_runs_make_check(tmp_path: Path) -> None:
    """In a repository of its own, where a stand-in for make writes down what it is asked and rejects."""
    clone, programs = tmp_path / "clone", tmp_path / "bin"
    shutil.copytree(ROOT / ".ci", clone / ".ci")
    shutil.copy(ROOT / "Makefile", clone)
    programs.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}

    def run(*command: str, path: str = environment["PATH"]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=clone,
            env=environment | {"PATH": path},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    for command in (("git", "init", "-q"), ("make", "hooks"), ("git", "add", ".")):
        assert run(*command).returncode == 0
    stand_in = programs / "make"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/asked\nexit 1\n', encoding="utf-8")
    stand_in.chmod(0o755)
    commit = ("git", *IDENTITY, "commit", "-q", "-m", "x")
    assert run(*commit, path=f"{programs}:{environment['PATH']}").returncode == 1
    assert (tmp_path / "asked").read_text(encoding="utf-8") == "--no-print-directory check\n"
