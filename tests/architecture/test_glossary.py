"""docs/glossary.md has one word for one thing, and the words that it replaces do not spread."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
COLUMNS = 5
TERMS_MIN = 120

# How often a replaced word still stands in the source. Lower a number when one goes; no change may raise it.
STILL_THERE = {
    "Farewell": 10, "Living": 11, "MemberQueues": 7, "Mender": 9, "NumberedProducer": 5, "Numbering": 22,
    "OldFiles": 3, "PastTries": 5, "Reopening": 3, "TryWatch": 4, "goodbye": 3, "mending": 1,
}  # fmt: skip


def rows() -> list[list[str]]:
    lines = GLOSSARY.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] != "term"]


def replaced_words() -> list[str]:
    return [word for row in rows() for word in re.findall(r"`([^`]+)`", row[4])]


def test_every_term_has_its_meaning_its_chinese_word_and_its_source() -> None:
    assert len(rows()) >= TERMS_MIN
    for row in rows():
        assert len(row) == COLUMNS, row
        assert all(row[:4]), row
    assert [name for name, count in Counter(row[0] for row in rows()).items() if count > 1] == []


def test_replaced_words_do_not_spread() -> None:
    listed = subprocess.run(["git", "ls-files", "*/src/*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    text = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in listed.stdout.split())
    assert sorted(replaced_words()) == sorted(STILL_THERE)
    assert {word: len(re.findall(rf"\b{word}\b", text)) for word in STILL_THERE} == STILL_THERE
