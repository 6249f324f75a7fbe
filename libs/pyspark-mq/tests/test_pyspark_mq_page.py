"""The users' page names every option and every column, each option in an example (mechanisms Y1, Y2, Y5)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pyspark_mq.options import READ_OPTIONS
from pyspark_mq.schema import SCHEMA
from pyspark_mq.sink.options import WRITE_OPTIONS
from pyspark_mq.sink.partition_sender import COLUMNS

PAGE = (Path(__file__).parents[3] / "docs/guides/spark.md").read_text(encoding="utf-8")
EXAMPLES = "".join(re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("name", sorted({*READ_OPTIONS, *WRITE_OPTIONS}))
def test_every_option_has_an_example(name: str) -> None:
    assert f'"{name}"' in EXAMPLES


def test_no_example_has_an_option_that_is_none() -> None:
    sparks_own = {"path", "checkpointLocation"}
    assert set(re.findall(r'\.option\(\s*"([^"]+)"', EXAMPLES)) - sparks_own == {*READ_OPTIONS, *WRITE_OPTIONS}


def test_every_column_of_reading_and_writing_is_explained() -> None:
    tables = {name for row in re.findall(r"^\| ([^|]+) \|", PAGE, re.MULTILINE) for name in re.split(r"[, ]+", row)}
    assert {*SCHEMA.names, *COLUMNS} <= tables
