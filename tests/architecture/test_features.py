"""docs/features.md has every mechanism, and says nothing about the code that is not so.

A row's proof is one of: pytest node ids in backticks, all of which exist; `not yet: why`, and then the code is a dash;
or, for the rows that are arguments and not mechanisms, `doc: path#anchor` with a heading of that anchor.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs/features.md"

RANGES = {
    "N": 12, "M": 10, "P": 21, "L": 14, "C": 25, "O": 2, "D": 7, "T": 14, "R": 2, "I": 2, "F": 3, "S": 11, "E": 4,
    "H": 6, "Q": 3, "X": 10, "U": 10, "Y": 9,
}  # fmt: skip
IDS = [f"{letter}{number}" for letter, last in RANGES.items() for number in range(1, last + 1)]
ARGUMENTS = {"M6", "C24", "C25", "S9", "X7"}  # may be proven by a document

HEAD = "| id | feature | code | proof |"
NONE = "—"
NOT_YET = re.compile(r"not yet: \S.{9,}")
DOC = re.compile(r"doc: (?P<path>[^#\s]+)#(?P<anchor>[a-z0-9-]+)")
NODE_IDS = re.compile(r"`[^`]+`(, `[^`]+`)*")


@dataclass(frozen=True)
class Row:
    id: str
    feature: str
    code: str
    proof: str


def rows(text: str) -> list[Row]:
    """The table's rows; a `|` inside a cell is written `&#124;`."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and re.fullmatch("[A-Z][0-9]+", cells[0]):
            assert len(cells) == 4, line
            found.append(Row(*cells))
    return found


def anchors(text: str) -> set[str]:
    """What the headings can be linked by, as the usual renderers make it."""
    titles = re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", title.lower()).replace(" ", "-") for title in titles}


def problems(row: Row) -> list[str]:
    """What is not so in this row."""
    found = []
    paths = re.findall(r"`([^`]+)`", row.code)
    if row.code != NONE and not paths:
        found.append(f"the code is neither {NONE} nor a path in backticks: {row.code}")
    found += [f"there is no {path}" for path in paths if not (ROOT / path).exists()]
    if NOT_YET.fullmatch(row.proof):
        if row.code != NONE:
            found.append(f"not yet, and yet there is code; then the code is {NONE}")
    elif doc := DOC.fullmatch(row.proof):
        found += _doc_problems(row, doc["path"], doc["anchor"])
    elif NODE_IDS.fullmatch(row.proof):
        if row.code == NONE:
            found.append("a proof without code")
        found += [f"there is no test {node}" for node in re.findall(r"`([^`]+)`", row.proof) if not node_exists(node)]
    else:
        found.append(f"the proof is of none of the three forms: {row.proof!r}")
    return [f"{row.id}: {problem}" for problem in found]


def _doc_problems(row: Row, path: str, anchor: str) -> list[str]:
    if row.id not in ARGUMENTS:
        return ["is a mechanism: a document does not prove it"]
    if not (ROOT / path).is_file():
        return [f"there is no {path}"]
    if anchor not in anchors((ROOT / path).read_text(encoding="utf-8")):
        return [f"{path} has no heading #{anchor}"]
    return []


def node_exists(node: str) -> bool:
    """Whether `path::test` or `path::Class::test` stands in the file; a parameter in brackets is not looked at."""
    path, *names = node.split("[")[0].split("::")
    if not names or not (ROOT / path).is_file() or not Path(path).name.startswith("test_"):
        return False
    body: list[ast.stmt] = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
    for name in names:
        found = next((one for one in body if _defines(one, name)), None)
        if found is None:
            return False
        body = found.body if isinstance(found, ast.ClassDef) else []
    return names[-1].startswith("test")


def _defines(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name == name
    # a state machine's tests are an assignment: test_histories = Machine.TestCase
    return isinstance(statement, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == name for target in statement.targets
    )


def test_every_mechanism_is_there_once() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert HEAD in text
    assert [row.id for row in rows(text)] == IDS


def test_what_the_table_says_is_so() -> None:
    found = [problem for row in rows(TABLE.read_text(encoding="utf-8")) for problem in problems(row)]
    assert not found, "\n".join(found)


THIS = "tests/architecture/test_features.py"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"| N1 | x | `{THIS}` | `{THIS}::test_gone` |", f"there is no test {THIS}::test_gone"),
        (f"| N1 | x | `{THIS}` | `{THIS}::Row::test_x` |", "there is no test"),
        (f"| N1 | x | `{THIS}` | `{THIS}::rows` |", "there is no test"),
        (f"| N1 | x | `{THIS}` | `tests/gone.py::test_x` |", "there is no test"),
        (f"| N1 | x | `gone.py` | `{THIS}::test_what_the_table_says_is_so` |", "there is no gone.py"),
        (f"| N1 | x | {NONE} | `{THIS}::test_what_the_table_says_is_so` |", "a proof without code"),
        (f"| N1 | x | `{THIS}` | not yet: for a good reason |", "not yet, and yet there is code"),
        (f"| N1 | x | {NONE} | not yet: |", "none of the three forms"),
        (f"| N1 | x | {NONE} | done |", "none of the three forms"),
        (f"| N1 | x | {NONE} | doc: SECURITY.md#scope |", "a document does not prove it"),
        (f"| M6 | x | {NONE} | doc: gone.md#x |", "there is no gone.md"),
        (f"| M6 | x | {NONE} | doc: SECURITY.md#gone |", "has no heading #gone"),
    ],
)
def test_row_that_is_not_so_is_caught(line: str, sentence: str) -> None:
    (row,) = rows(line)
    assert any(sentence in problem for problem in problems(row)), problems(row)


@pytest.mark.parametrize(
    "line",
    [
        f"| N1 | x | `{THIS}` | `{THIS}::test_what_the_table_says_is_so` |",
        f"| N1 | x | `{THIS}` | `{THIS}::test_row_that_is_so_passes[a-b]`, `{THIS}::test_row_that_is_so_passes` |",
        f"| N1 | x | {NONE} | not yet: it needs several brokers |",
    ],
)
def test_row_that_is_so_passes(line: str) -> None:
    (row,) = rows(line)
    assert problems(row) == []
