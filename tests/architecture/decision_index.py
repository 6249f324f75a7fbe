"""docs/adr/README.md: every decision with its title and its status, made of the decisions themselves.

    python tests/architecture/decision_index.py

A decision begins with `# N. Title`, an empty line, and `Status: ...`: accepted, or superseded by another one, and which
ones have amended it. Both name decisions by links.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "adr"
INDEX = FOLDER / "README.md"

_LINK = r"\[\d+\]\(\d{4}-[\w-]+\.md\)"
_STATUS = rf"(?:accepted|superseded by {_LINK})(?:, amended by {_LINK}(?:, {_LINK})*)?"
HEAD = re.compile(rf"# (\d+)\. (.+)\n\nStatus: ({_STATUS})\n\n")

BEGINNING = """# Decisions

Why things are as they are: each record has a decision with its reasons and what was not chosen. Titles name what was
decided; a record that a later one has amended still holds but for that. Numbers that are missing were never used, or
were reasons of one module that its docstring has now. Measurements are in
[docs/performance](../performance/producing.md) and its neighbours.

This page is made by `python tests/architecture/decision_index.py`.

| number | decision | status |
|---|---|---|
"""


@dataclass(frozen=True)
class Decision:
    number: int
    file: str
    title: str
    status: str

    @property
    def row(self) -> str:
        return f"| {self.number} | [{self.title}]({self.file}) | {self.status} |\n"


def parse(file: str, text: str) -> Decision:
    """Raises ValueError for a record that does not begin as it has to, or under another number than its file's."""
    head = HEAD.match(text)
    if head is None:
        raise ValueError(f"docs/adr/{file} begins with '# N. Title', an empty line and 'Status: accepted' or the like")
    if int(head[1]) != int(file[:4]):
        raise ValueError(f"docs/adr/{file} has the number {head[1]} in its title")
    return Decision(int(head[1]), file, head[2], head[3])


def decisions() -> list[Decision]:
    return [parse(path.name, path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("[0-9]*.md"))]


def index() -> str:
    return BEGINNING + "".join(decision.row for decision in decisions())


if __name__ == "__main__":
    INDEX.write_text(index(), encoding="utf-8")
