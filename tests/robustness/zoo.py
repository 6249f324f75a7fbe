"""`make zoo`: the bugs of README.md's zoo, put back one by one; for each a named test has to go red.

A bug is an edit of one package (zoo_bugs.py). The package's src folder is copied, the copy is edited, and the bug's
tests run with the copy first on PYTHONPATH, in real processes too. In the end the same tests run on the tree as it is,
and have to be green. `python tests/robustness/zoo.py [--only NUMBER] [--out FILE]`; a whole run writes
docs/evidence/bug-zoo.json. Exit code: 0 every bug was caught, 1 otherwise.

Invariant: a bug counts as caught only when its edits apply exactly once each, the edited package imports, from the
copy, and a test fails for what it sees, not for a mistake in the edit.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from rich.console import Console
from rich.table import Table
from zoo_bugs import BUGS, Bug

from hourglass_loadtest.machine import describe_run

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs/evidence/bug-zoo.json"
RUN_TIMEOUT_S, TEST_TIMEOUT_S = 300, 60
PIPE_COLUMNS = 120
# What an edit that is wrong itself would raise, and what a test that hangs ends with: no proof that a test watches.
MISTAKES = (
    "Failed: Timeout",
    "NameError",
    "ImportError",
    "ModuleNotFoundError",
    "AttributeError",
    "SyntaxError",
    "UnboundLocalError",
)


class ZooError(Exception):
    """A bug that cannot be put back as it is described."""


@dataclass(frozen=True, slots=True)
class Ran:
    """What pytest said: node ids that were red with the first line of why, and how many tests ran."""

    red: dict[str, str] = field(default_factory=dict)
    ran: int = 0
    trouble: str = ""  # the run itself went wrong


@dataclass(frozen=True, slots=True)
class Verdict:
    """`problem` is empty when the bug was caught."""

    bug: Bug
    red: dict[str, str]
    seconds: float
    problem: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.bug.number,
            "title": self.bug.title,
            "caught": not self.problem,
            "problem": self.problem or None,
            "red": self.red,
            "tests": list(self.bug.tests),
            "seconds": round(self.seconds, 1),
        }


def put_back(bug: Bug, target: Path, root: Path = ROOT) -> Path:
    """Copy the package with the bug in it below `target`; returns the folder for PYTHONPATH. Raises ZooError."""
    source = source_folder(bug.edits[0].path)
    copy = target / "src"
    shutil.copytree(root / source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for edit in bug.edits:
        path = copy / Path(edit.path).relative_to(source)
        text = path.read_text(encoding="utf-8")
        if text.count(edit.old) != 1:
            raise ZooError(f"{edit.path} has the text to be replaced {text.count(edit.old)} times: {edit.old!r}")
        path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
    return copy


def source_folder(path: str) -> Path:
    """`libs/osenv/src` of `libs/osenv/src/osenv/disk.py`."""
    parts = Path(path).parts
    return Path(*parts[: parts.index("src") + 1])


def check_imports(bug: Bug, copy: Path) -> None:
    """Raises ZooError unless every edited module imports, and from the copy."""
    for edit in bug.edits:
        parts = Path(edit.path).relative_to(source_folder(edit.path)).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        code = f"import importlib; print(importlib.import_module({module!r}).__file__)"
        run = subprocess.run(
            [sys.executable, "-c", code], env=environment(copy), cwd=ROOT, capture_output=True, text=True, check=False,
            timeout=RUN_TIMEOUT_S,
        )  # fmt: skip
        if run.returncode or not Path(run.stdout.strip()).is_relative_to(copy):
            raise ZooError(f"{module} does not import from the copy: {run.stdout}{run.stderr[-300:]}")


def environment(copy: Path | None) -> dict[str, str]:
    """With the copy before the installed packages."""
    values = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "REQUIRE")}
    if copy is not None:
        before = values.get("PYTHONPATH")
        values["PYTHONPATH"] = str(copy) + (os.pathsep + before if before else "")
    return values


def run_tests(node_ids: Sequence[str], copy: Path | None, folder: Path, *options: str) -> Ran:
    """Run the tests in a process of their own, with the copy if there is one."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", f"--timeout={TEST_TIMEOUT_S}", f"--junitxml={report}", "--tb=short"]
    command += ["-o", "junit_family=xunit1", f"--basetemp={folder / 'tmp'}", *options, *node_ids]
    try:
        run = subprocess.run(
            command, cwd=ROOT, env=environment(copy), capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return Ran(trouble=f"pytest did not end within {RUN_TIMEOUT_S} s")
    if not report.exists() or run.returncode not in (0, 1):
        return Ran(trouble=f"pytest ended with code {run.returncode}: {(run.stdout + run.stderr)[-600:]}")
    return read_report(report)


def read_report(report: Path) -> Ran:
    """A failure is a test that saw something; an error, in a fixture or at collection, is trouble."""
    red, ran, trouble = dict[str, str](), 0, ""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        ran += 1
        node_id = f"{case.get('file')}::{case.get('name')}"
        for outcome in case:
            reason = (outcome.get("message") or "").split("\n")[0]
            if outcome.tag == "failure":
                red[node_id] = reason
            elif outcome.tag == "error":
                trouble = f"{node_id}: {reason}"
            elif outcome.tag == "skipped":
                ran -= 1
    return Ran(red, ran, trouble)


def judge(bug: Bug) -> Verdict:
    """Put the bug back and see whether its tests notice."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"hourglass-zoo-{bug.number}-") as name:
        folder = Path(name)
        try:
            copy = put_back(bug, folder)
            check_imports(bug, copy)
        except ZooError as error:
            return Verdict(bug, {}, time.monotonic() - began, str(error))
        run = run_tests(bug.tests, copy, folder, "--exitfirst")
    seen = {test: reason for test, reason in run.red.items() if not reason.startswith(MISTAKES)}
    problem = ""
    if not seen:
        problem = run.trouble or next(iter(run.red.values()), "") or f"all {run.ran} tests are green with the bug"
    return Verdict(bug, seen, time.monotonic() - began, problem)


def check_green(bugs: Sequence[Bug], cores: int) -> str:
    """Empty when all the tests of `bugs` are green on the tree as it is."""
    node_ids = list(dict.fromkeys(test for bug in bugs for test in bug.tests))
    with tempfile.TemporaryDirectory(prefix="hourglass-zoo-green-") as folder:
        run = run_tests(node_ids, None, Path(folder), "--numprocesses", str(cores))
    if run.trouble or run.red:
        return f"red without any bug: {run.trouble or run.red}"
    return "" if run.ran >= len(node_ids) else f"only {run.ran} tests of {len(node_ids)} ran"


def table(verdicts: Sequence[Verdict]) -> Table:
    """The zoo, and the tests that caught its bugs."""
    made = Table("no.", "bug", "red test, or what is wrong", "s")
    for verdict in verdicts:
        red = next(iter(verdict.red), "").rpartition("::")[2]
        shown = red if not verdict.problem else f"NOT CAUGHT: {verdict.problem}"
        made.add_row(verdict.bug.number, verdict.bug.title, shown, f"{verdict.seconds:.0f}")
    return made


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="zoo.py", description="Put old bugs back and see tests go red.")
    parser.add_argument("--only", action="append", metavar="NUMBER", help="this bug; may be repeated")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="bugs at a time")
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"without it a whole run writes {EVIDENCE.name}")
    options = parser.parse_args(arguments)
    bugs = [bug for bug in BUGS if not options.only or bug.number in options.only]
    if not bugs:
        parser.error(f"the bugs are {', '.join(bug.number for bug in BUGS)}")
    head, began = describe_run(ROOT), time.monotonic()
    console = Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)
    with ThreadPoolExecutor(options.cores) as pool:
        verdicts = list(pool.map(judge, bugs))
    unsound = check_green(bugs, options.cores)
    caught = sum(not verdict.problem for verdict in verdicts)
    console.print(table(verdicts), markup=False)
    console.print(
        f"{caught}/{len(bugs)} caught" + (f"; {unsound}" if unsound else "; the same tests are green without")
    )
    out = options.out or (None if options.only else EVIDENCE)
    if out is not None:
        document = {
            **head,
            "duration_s": round(time.monotonic() - began, 1),
            "caught": f"{caught}/{len(bugs)}",
            "green_without": not unsound,
            "bugs": [verdict.to_json() for verdict in verdicts],
        }
        out.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return int(caught < len(bugs) or bool(unsound))


if __name__ == "__main__":
    sys.exit(main())
