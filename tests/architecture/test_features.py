"""docs/features.md has every mechanism once, with code that exists and the tests that are marked with its id.

What proves a mechanism is one of: tests marked `@pytest.mark.mechanism(id)`, which `make features` writes into the
table; `not yet: why`, and then the code is a dash; or, for arguments that are no mechanisms, `doc: path#anchor`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from features import ROOT, TABLE, marked_tests, proofs, with_proofs
from test_references import anchors

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
NODE_IDS = re.compile(r"`[^`]+::[^`]+`(, `[^`]+::[^`]+`)*")


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


def problems(row: Row) -> list[str]:
    """What is wrong with this row."""
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
    elif not NODE_IDS.fullmatch(row.proof):
        found.append(f"the proof is of none of the three forms: {row.proof!r}")
    elif row.code == NONE:
        found.append("a proof without code")
    return [f"{row.id}: {problem}" for problem in found]


def _doc_problems(row: Row, path: str, anchor: str) -> list[str]:
    if row.id not in ARGUMENTS:
        return ["is a mechanism: a document does not prove it"]
    if not (ROOT / path).is_file():
        return [f"there is no {path}"]
    if anchor not in anchors(path):
        return [f"{path} has no heading #{anchor}"]
    return []


def test_every_mechanism_is_there_once() -> None:
    text = TABLE.read_text(encoding="utf-8")
    assert HEAD in text
    assert [row.id for row in rows(text)] == IDS


def test_what_the_table_says_is_so() -> None:
    found = [problem for row in rows(TABLE.read_text(encoding="utf-8")) for problem in problems(row)]
    assert not found, "\n".join(found)


def test_the_proofs_are_the_marked_tests() -> None:
    """`make features` writes them."""
    text, found = TABLE.read_text(encoding="utf-8"), proofs()
    assert with_proofs(text, found) == text
    assert {row.id for row in rows(text) if NODE_IDS.fullmatch(row.proof)} == found.keys()


def test_marks_are_found_on_functions_classes_methods_and_assignments() -> None:
    source = """
@pytest.mark.parametrize("x", [1])
@pytest.mark.mechanism("N1", "N2")
async def test_one(x): ...

@pytest.mark.mechanism("N3")
class TestMany:
    @pytest.mark.mechanism("N4")
    def test_two(self): ...

test_histories = pytest.mark.mechanism("N5")(Machine.TestCase)
test_other = Machine.TestCase
"""
    assert dict(marked_tests(source)) == {
        "test_one": ["N1", "N2"],
        "TestMany": ["N3"],
        "TestMany::test_two": ["N4"],
        "test_histories": ["N5"],
    }


def test_a_mark_of_an_unknown_mechanism_is_rejected() -> None:
    with pytest.raises(ValueError, match=r"docs/features\.md does not have: \['Z9'\]"):
        with_proofs(
            "| N1 | x | `a.py` | `old` |", {"N1": ["tests/test_a.py::test_x"], "Z9": ["tests/test_a.py::test_y"]}
        )


THIS = "tests/architecture/test_features.py"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (f"| N1 | x | `gone.py` | `{THIS}::test_x` |", "there is no gone.py"),
        (f"| N1 | x | {NONE} | `{THIS}::test_x` |", "a proof without code"),
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
        f"| N1 | x | `{THIS}` | `{THIS}::test_a`, `{THIS}::TestB::test_c` |",
        f"| N1 | x | {NONE} | not yet: several brokers come later |",
    ],
)
def test_row_that_is_so_passes(line: str) -> None:
    (row,) = rows(line)
    assert problems(row) == []
