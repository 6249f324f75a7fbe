"""The commands of README and guides exist, both READMEs say the same, and their figures are those of docs/evidence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README, CHINESE = ROOT / "README.md", ROOT / "README.zh-CN.md"
PAGES = [README, CHINESE, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs/guides").glob("*.md"))]
LINES_MAX = 220


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


def blocks(page: Path) -> list[str]:
    return re.findall(r"^```[^\n]*\n.*?^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    """Where the page leads to, but for the other README."""
    found = re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    return sorted(link for link in found if not link.startswith("README"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_make_command_names_a_target(page: Path) -> None:
    commands = make_commands(page.read_text(encoding="utf-8"))
    assert {command for command in commands if not set(named_targets(command)) <= makefile_targets()} == set()


@pytest.mark.parametrize("page", [README, CHINESE], ids=lambda page: page.name)
def test_the_first_two_commands_are_the_demonstration_and_the_tests(page: Path) -> None:
    assert make_commands(page.read_text(encoding="utf-8"))[:2] == ["make demo", "make test"]
    assert len(page.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


def test_both_readmes_have_the_same_programs_links_and_sections() -> None:
    assert blocks(README) == blocks(CHINESE)
    assert links(README) == links(CHINESE)
    rows, chinese_rows = (
        [
            len(re.findall(rf"^{start}", page.read_text(encoding="utf-8"), re.MULTILINE))
            for start in ("## ", r"\|", r"\d\.")
        ]
        for page in (README, CHINESE)
    )
    assert rows == chinese_rows


def test_the_figures_are_those_of_the_evidence() -> None:
    queue = json.loads((ROOT / "docs/evidence/queue-benchmarks.json").read_text(encoding="utf-8"))["results"]
    orders = json.loads((ROOT / "docs/evidence/orders-benchmark.json").read_text(encoding="utf-8"))["results"]

    def median(workload: str, metric: str) -> float:
        return float(queue[workload]["summary"][metric]["median"])

    def two(workload: str) -> str:
        return f"{median(workload, 'p50_ms'):.2f} / {median(workload, 'p99_ms'):.2f} ms"

    (sixteen,) = [one for one in orders if one["measurement"].startswith("closed loop, 16 ")]
    figures = [
        f"{median('produce-64', 'msg_per_s'):,.0f}",
        f"{median('produce-64-sync', 'msg_per_s'):,.0f}",
        two("end-to-end-500-per-s"),
        two("delay-timed-lateness"),
        f"{sixteen['rate_per_s']:.0f}",
    ]
    for page in (README, CHINESE):
        cells = re.findall(r"^\| [^|]+ \| ([^|]+) \| \[[\w-]+\.json\]", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert [
            cell.split(" messages")[0].split(" orders")[0].split(" 条")[0].split(" 单")[0] for cell in cells
        ] == figures


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
    assert printed in (ROOT / "docs/reference/mqadmin.md").read_text(encoding="utf-8")
