"""docs/adr has an index that is complete, and records whose titles and states can be read from it."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from decision_index import FOLDER, INDEX, decisions, index, parse


def test_the_index_has_every_decision_with_its_title_and_its_status() -> None:
    assert INDEX.read_text(encoding="utf-8") == index(), "run python tests/architecture/decision_index.py"


def test_numbers_and_titles_are_unique() -> None:
    found = decisions()
    assert [number for number, count in Counter(one.number for one in found).items() if count > 1] == []
    assert [title for title, count in Counter(one.title for one in found).items() if count > 1] == []


def test_a_decision_that_supersedes_another_one_says_so() -> None:
    for one in decisions():
        for file in re.findall(r"superseded by \[\d+\]\(([\w.-]+)\)", one.status):
            assert one.file in (FOLDER / file).read_text(encoding="utf-8"), f"{file} does not name {one.file}"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("# 1. A title\n\nText.\n", "begins with"),
        ("# 1. A title\n\nStatus: proposed\n\nText.\n", "begins with"),
        ("# 1. A title\n\nStatus: superseded by 2\n\nText.\n", "begins with"),
        ("# 2. A title\n\nStatus: accepted\n\nText.\n", "has the number 2"),
    ],
)
def test_a_record_that_begins_otherwise_is_rejected(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse("0001-a-title.md", text)


def test_states_are_read() -> None:
    text = "# 1. A title\n\nStatus: superseded by [2](0002-b.md), amended by [3](0003-c.md), [4](0004-d.md)\n\nText.\n"
    assert parse("0001-a-title.md", text).status.startswith("superseded by [2]")
