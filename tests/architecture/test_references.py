"""Everything that code and documents cite is in this repository: mechanisms, figures, bugs, decisions, documents.

Forms that are resolved: `mechanism P4` and `mechanisms P4-P8, P10` by docs/reference/mechanisms.md, `figure G5` by
docs/reference/faults.md, `bug zoo 30` by tests/robustness/README.md, `ADR 34` by docs/adr, and paths, file names of
documents and Markdown links, each with its #anchor. Numbers of a tracker of issues mean nothing to a reader: they fail.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MECHANISMS = "docs/reference/mechanisms.md"
FAULTS = "docs/reference/faults.md"
ZOO = "tests/robustness/README.md"
ABOUT_REFERENCES = {"tests/architecture/test_references.py", "tests/architecture/test_features.py"}  # with broken ones

SUFFIXES = {".py", ".pyi", ".md", ".rst", ".proto", ".sql", ".toml", ".yml", ".yaml", ".conf", ".html", ".sh", ".json"}
FOLDERS = "docs|libs|services|tools|tests|deploy|loadtest|examples"
HISTORY = "CHANGELOG.md"  # tells of files as they were called then

_ITEM = r"[A-Z]\d{1,2}(?:-[A-Z]?\d{1,2})?"
_MORE = rf"(?:(?:,\s+|\s+and\s+)(?:# )?{_ITEM})*"
IDS = re.compile(rf"\b[Mm]echanisms?\s+(?:# )?({_ITEM}{_MORE})")
FIGURE = re.compile(r"\b[Ff]igures?\s+(?:# )?(G\d+)\b")
BUGS = re.compile(r"\b[Bb]ug zoo\s+(\d+(?:(?:, | and )\d+)*)")
DECISIONS = re.compile(r"\bADRs?\s+(\d+(?:(?:, | and |-)\d+)*)")
ISSUE = re.compile(r"\b[Ii]ssues? #?\d+")
_KINDS = "md|rst|py|json|sql|proto|conf|png|txt|yml"
PATH = re.compile(rf"(?<![\w./:-])((?:{FOLDERS})/[\w./-]*\w\.(?:{_KINDS}))(?:#([\w-]+))?")
DECISION_FILE = re.compile(r"docs/adr/(\d{4})\b")
DOCUMENT = re.compile(r"(?<![\w./-])([A-Z]{4,}(?:\.[\w-]+)?\.md)(?:#([\w-]+))?")
FILE = re.compile(r"`([\w./-]*\w\.(?:py|sql|proto))`")
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


@cache
def tracked() -> frozenset[str]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    return frozenset(path for path in listed.stdout.split("\n") if path)


@cache
def endings() -> frozenset[str]:
    """`b.py` and `a/b.py` of a/b.py: what a file can be called."""
    parts = (path.split("/") for path in tracked())
    return frozenset("/".join(path[begin:]) for path in parts for begin in range(len(path)))


@cache
def text_of(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


@cache
def anchors(path: str) -> frozenset[str]:
    """What the headings of a page can be linked by, as GitHub and `make docs` make it."""
    titles = re.findall(r"^#+ (.+?)\s*$", text_of(path), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)


@cache
def decisions() -> frozenset[int]:
    return frozenset(int(found[1]) for path in tracked() if (found := re.match(r"docs/adr/(\d{4})-", path)))


@cache
def bugs() -> frozenset[str]:
    return frozenset(re.findall(r"^\| (\d+) \|", text_of(ZOO), re.MULTILINE))


def expanded(ids: str) -> Iterator[str]:
    """`P4-P6, P8` -> P4, P5, P6, P8."""
    for first, last in re.findall(r"([A-Z]\d+)(?:-[A-Z]?(\d+))?", ids):
        for number in range(int(first[1:]), int(last or first[1:]) + 1):
            yield f"{first[0]}{number}"


def problems(path: str, text: str) -> list[str]:
    """What the file cites and a reader cannot find."""
    found = [f"{issue} means nothing to a reader" for issue in ISSUE.findall(text)]
    for pattern, page in ((IDS, MECHANISMS), (FIGURE, FAULTS)):
        cited = (one for ids in pattern.findall(text) for one in expanded(ids))
        found += [f"{page} has no {one}" for one in cited if one.lower() not in anchors(page)]
    cited_bugs = [number for numbers in BUGS.findall(text) for number in re.findall(r"\d+", numbers)]
    found += [f"{ZOO} has no bug {number}" for number in cited_bugs if number not in bugs()]
    cited_decisions = [int(number) for numbers in DECISIONS.findall(text) for number in re.findall(r"\d+", numbers)]
    cited_decisions += [int(number) for number in DECISION_FILE.findall(text)]
    found += [f"there is no ADR {number}" for number in cited_decisions if number not in decisions()]
    if path != HISTORY and Path(path).suffix != ".json":
        found += _missing_documents(path, text)
    return found


def _missing_documents(path: str, text: str) -> Iterator[str]:
    for cited, anchor in PATH.findall(LINK.sub("", text) if path.endswith(".md") else text):
        yield from _missing(cited, anchor)
    for name, anchor in DOCUMENT.findall(text):
        if name not in endings():
            yield f"there is no document {name}"
        elif anchor and name in tracked():
            yield from _missing(name, anchor)
    if path.endswith(".md"):
        for file in FILE.findall(text):
            if file not in endings():
                yield f"there is no {file}"
        folder = ROOT / Path(path).parent
        for target, anchor in LINK.findall(text):
            goal = (folder / target).resolve() if target else ROOT / path
            if not goal.exists():
                yield f"the link {target} leads nowhere"
            elif anchor and goal.suffix == ".md":
                yield from _missing(str(goal.relative_to(ROOT)), anchor)


def _missing(cited: str, anchor: str) -> Iterator[str]:
    if not (ROOT / cited).exists():
        yield f"there is no {cited}"
    elif anchor and cited.endswith(".md") and anchor not in anchors(cited):
        yield f"{cited} has no heading #{anchor}"


def citing() -> list[str]:
    kept = [path for path in tracked() if Path(path).suffix in SUFFIXES or path == "Makefile"]
    return sorted(path for path in kept if path not in ABOUT_REFERENCES and (ROOT / path).is_file())


def test_everything_that_is_cited_is_here() -> None:
    found = [f"{path}: {problem}" for path in citing() for problem in problems(path, text_of(path))]
    assert not found, "\n".join(found)


def test_every_mechanism_of_the_table_is_described() -> None:
    listed = re.findall(r"^\| ([A-Z]\d+) \|", text_of("docs/features.md"), re.MULTILINE)
    assert [one.upper() for one in re.findall(r"^### ([A-Z]\d+)$", text_of(MECHANISMS), re.MULTILINE)] == listed


def test_every_figure_of_a_sweep_is_described() -> None:
    figures = set(re.findall(r"^\| (G\d+) \| `", text_of(ZOO), re.MULTILINE))
    assert figures
    assert {figure for figure in figures if figure.lower() not in anchors(FAULTS)} == set()


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("# mechanism P99", "has no P99"),
        ("(mechanisms P4-P99)", "has no P22"),
        ("(mechanisms\n    P4, Z77)", "has no Z77"),
        ("comes with issue 8", "issue 8 means nothing to a reader"),
        ("(figure G99)", "has no G99"),
        ("(bug zoo 19 and 999)", "has no bug 999"),
        ("(ADR 9999)", "there is no ADR 9999"),
        ("(docs/adr/9999)", "there is no ADR 9999"),
        ("see docs/reference/gone.md", "there is no docs/reference/gone.md"),
        ("see docs/reference/faults.md#gone", "has no heading #gone"),
        ("as GONEFOREVER.md asks", "there is no document GONEFOREVER.md"),
        ("in `core/gone.py`", "there is no core/gone.py"),
        ("[a page](docs/gone.md)", "docs/gone.md"),
        ("[a page](docs/guides/guarantees.md#gone)", "has no heading #gone"),
    ],
)
def test_broken_reference_is_caught(line: str, sentence: str) -> None:
    found = problems("README.md", line)
    assert any(sentence in problem for problem in found), found


@pytest.mark.parametrize(
    "line",
    [
        "# mechanism P4",
        "(mechanisms P4-P8, P10 and\n    # X1)",
        "(figure G5), bug zoo 19 and 20, ADR 45, docs/adr/0045",
        "docs/reference/faults.md#store-rules, ARCHITECTURE.md",
        "[a page](docs/guides/guarantees.md#in-order)",
    ],
)
def test_good_reference_is_found(line: str) -> None:
    assert problems("README.md", line) == []
