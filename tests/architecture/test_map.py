"""ARCHITECTURE.md names files that are there, and names that they define."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
PLACES = re.findall(r"^\| .+ \| `([^`]+\.py)` \| `(\w+)` \|$", PAGE, re.MULTILINE)
PLACES_MIN = 20


@pytest.fixture(scope="module")
def paths() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    return listed.stdout.split()


def test_every_module_that_the_map_names_is_there(paths: list[str]) -> None:
    named = set(re.findall(r"`([\w/*-]+\.py)`", PAGE))
    gone = [name for name in named if "*" not in name and not any(f"/{path}".endswith(f"/{name}") for path in paths)]
    assert not gone


def test_the_map_leads_to_enough_places() -> None:
    assert len(PLACES) >= PLACES_MIN


@pytest.mark.parametrize(("path", "name"), PLACES)
def test_a_place_of_the_map_defines_what_to_begin_with(path: str, name: str) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
