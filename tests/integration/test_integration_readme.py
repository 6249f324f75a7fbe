"""The README's commands exist, and a newcomer's first two are the demonstration and the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def make_commands(markdown: str) -> list[str]:
    """The lines of code blocks that begin with `make `, with or without a prompt or variables before it."""
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", markdown, re.MULTILINE | re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for block in blocks for line in block.splitlines()]
    return [found[1].strip() for line in lines if (found := re.match(r"(?:[A-Z_]+=\S+ )*(make [^#]*)", line))]


def named_targets(command: str) -> list[str]:
    """What the command makes; options and variables are no targets."""
    words = command.split()[1:]
    return [word for word in words if not word.startswith("-") and "=" not in word]


def makefile_targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))


def test_every_make_command_of_the_readme_names_a_target() -> None:
    commands = make_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    unknown = {command for command in commands if not set(named_targets(command)) <= makefile_targets()}
    assert commands
    assert unknown == set()


def test_the_first_two_commands_are_the_demonstration_and_the_tests() -> None:
    commands = make_commands((ROOT / "README.md").read_text(encoding="utf-8"))
    assert commands[:2] == ["make demo", "make test"]


def test_commands_are_found_in_code_blocks_only() -> None:
    text = "make sense\n```sh\n$ make demo  # first\nDEMO_ORDERS=5 make up X=1\n```\n`make lock`\n"
    assert make_commands(text) == ["make demo", "make up X=1"]
    assert named_targets("make up X=1 -j4") == ["up"]


def test_the_help_of_mqadmin_is_the_one_that_is_shown() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mqadmin", "--help"],
        env=os.environ | {"COLUMNS": "100"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    printed = "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")
    assert printed in (ROOT / "README.md").read_text(encoding="utf-8")
