"""docs/glossary.md has one word for one thing, and no source has the words that it replaces."""

from __future__ import annotations

import importlib
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
COLUMNS = 5
TERMS_MIN = 120
WORDS_MIN = 18
# A process has a name and is "it". These stand for persons, whom a sentence should name, too.
PRONOUNS = re.compile(r"\b(nobody|somebody|whoever|anybody)\b", re.IGNORECASE)
PAGES = ("services/orders/src/orders/pages/texts_en.py",)  # sentences for buyers


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


def test_replaced_words_do_not_come_back() -> None:
    listed = subprocess.run(["git", "ls-files", "*/src/*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    text = "\n".join((ROOT / path).read_text(encoding="utf-8") for path in listed.stdout.split())
    words = replaced_words()
    assert len(words) >= WORDS_MIN
    # A public name may stand in quotes for one version, as the alias that it is.
    assert [word for word in words if re.search(rf"(?<![\"\w]){word}\b", text)] == []


@pytest.mark.parametrize(
    ("module", "old", "current"),
    [
        ("mqremoting", "RefusedError", "RejectedError"),
        ("pyspark_mq", "ReadRefusedError", "ReadRejectedError"),
        ("servicekit.errors", "RefusedError", "RejectedError"),
    ],
)
def test_a_public_name_of_before_says_what_it_is_now(module: str, old: str, current: str) -> None:
    loaded = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=rf"^{module}\.{old} is {module}\.{current} now$"):
        assert getattr(loaded, old) is getattr(loaded, current)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'Nothing'"):
        _ = loaded.Nothing


def test_sentences_name_their_subject() -> None:
    """Sources, documents and files of deployment; decisions (docs/adr) are records of their time."""
    kinds = ["*/src/*.py", "*.md", "*.proto", "*.toml", "*.yml", "*.yaml", "*.conf", ":!docs/adr", ":!*_pb2*"]
    listed = subprocess.run(["git", "ls-files", *kinds], cwd=ROOT, check=True, capture_output=True, text=True)
    paths = [path for path in listed.stdout.split() if path not in PAGES]
    assert len(paths) > len(PAGES)
    found = [
        f"{path}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate((ROOT / path).read_text(encoding="utf-8").splitlines(), 1)
        if PRONOUNS.search(line)
    ]
    assert found == []
