"""Every package has a README of 20 to 40 lines, which says what it may import as tests/architecture checks it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from test_imports import MAY_IMPORT, STUBS, is_within

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(
    path.parent
    for pattern in ("libs/*", "services/*", "tools/*", "deploy/local", "loadtest")
    for path in ROOT.glob(f"{pattern}/pyproject.toml")
)
LINES = range(20, 41)
HEADINGS = ("Use", "May import", "Test")


def import_name(package: Path) -> str:
    """The one package of the project in src/; the stubs come with mqproto."""
    (name,) = [one.name for one in (package / "src").iterdir() if one.is_dir() and one.name in MAY_IMPORT]
    return name


def allowed(name: str) -> set[str]:
    """What the package or a part of it may import of the other packages."""
    found = {one.split(".")[0] for part in MAY_IMPORT if is_within(part, name) for one in MAY_IMPORT[part]}
    return found - {name, STUBS.split(".")[0]}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_readme_says_what_the_package_is_for_and_what_it_may_import(package: Path) -> None:
    text = (package / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) in LINES
    assert [heading for heading in re.findall(r"^## (.+)$", text, re.MULTILINE) if heading in HEADINGS] == [*HEADINGS]
    named = re.findall(r"`(\w+)`", text.partition("## May import\n")[2].partition("\n## ")[0])
    if "Every package but" not in text:
        assert {name for name in named if name in MAY_IMPORT} == allowed(import_name(package))
    assert f".venv/bin/python -m pytest {package.relative_to(ROOT)}\n" in text
