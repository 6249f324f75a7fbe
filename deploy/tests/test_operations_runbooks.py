"""Runbooks: what they tell a person to type exists, and takes the flags that it is given."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import typer.main

import orders.adapters.tables
import orders.config
import payments.adapters.tables
import payments.config
from mq_broker.config import BrokerConfig
from mqadmin.__main__ import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(path for path in (ROOT / "docs/runbooks").glob("*.md") if path.stem != "README")
HEADINGS = ["What it means", "How to see it", "What to do", "How to know that it is over"]
COMMANDS: Any = typer.main.get_command(app)
METADATA = {"orders": orders.adapters.tables.metadata, "payments": payments.adapters.tables.metadata}


def fenced(text: str, language: str) -> list[str]:
    """The blocks of code of a language, also those within a list."""
    return re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL)


def typed(text: str) -> Iterator[str]:
    """What a person types: lines of a shell, and what stands between backticks."""
    for block in fenced(text, "sh"):
        yield from (line.strip() for line in block.splitlines())
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    yield from (one.replace("\n", " ") for one in re.findall(r"`([^`]+)`", prose))


@pytest.fixture(params=PAGES, ids=lambda path: path.stem)
def page(request: pytest.FixtureRequest) -> str:
    path: Path = request.param
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"# {path.stem}\n")
    return text


def test_a_page_has_four_parts_and_is_short(page: str) -> None:
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == HEADINGS
    assert len(page.splitlines()) <= 70


def test_commands_of_mqadmin_take_what_they_are_given(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:9876")
    for line in typed(page):
        if line.startswith("mqadmin "):
            command, arguments = COMMANDS, shlex.split(line)[1:]
            while arguments and hasattr(command, "commands"):
                assert arguments[0] in command.commands, line
                command, arguments = command.commands[arguments[0]], arguments[1:]
            # In a sentence, a command without any flag is only named.
            command.make_context("mqadmin", list(arguments), resilient_parsing=not arguments)


def test_other_commands_exist(page: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for line in typed(page):
        words = line.split()
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        if words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]) is not None, line


def test_keys_variables_alerts_and_files_that_are_named_exist(page: str) -> None:
    keys = set(re.findall(r"^#?(\w+) =", (ROOT / "deploy/conf/broker.conf").read_text(encoding="utf-8"), re.MULTILINE))
    assert len(keys) > len(fields(BrokerConfig)) / 2
    for word in re.findall(r"`([a-z]+[A-Z]\w+)(?: = \w+)?`", page):
        assert word in keys, word
    known = {f"ORDERS_{name}" for name in orders.config._PARSERS}
    known |= {f"PAYMENTS_{name}" for name in payments.config._PARSERS}
    given = {"ORDERS_URL", "PAYMENTS_URL", "GATEWAY_URL"}  # of make invariants
    assert set(re.findall(r"\b(?:ORDERS|PAYMENTS|GATEWAY)_[A-Z_]+\b", page)) <= known | given
    for name in re.findall(r"\b(?:deploy|docs)/[\w./-]+", page):
        assert (ROOT / name.rstrip(".")).exists(), name
    alerts = {path.stem for path in PAGES}
    families = "|".join(sorted({re.match("[A-Z][a-z]+", alert)[0] for alert in alerts}))  # type: ignore[index]
    for name in re.findall(rf"(?<![`.])\b(?:{families})[A-Z]\w+", page):
        assert name in alerts, name


@pytest.mark.parametrize("path", [path for path in PAGES if "```sql" in path.read_text(encoding="utf-8")], ids=str)
def test_statements_are_understood_by_the_database_that_they_name(path: Path) -> None:
    for statement in fenced(path.read_text(encoding="utf-8"), "sql"):
        name = statement.splitlines()[0].removeprefix("-- ")
        engine = sa.create_engine("sqlite://")
        with engine.begin() as connection:
            METADATA[name].create_all(connection)
            assert connection.execute(sa.text(statement)).all() == []
        engine.dispose()
