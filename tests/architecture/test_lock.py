"""requirements.lock: everything pinned, every pin hashed, and no file of the project names a package index."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"

PIN = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>.+?))?")
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")
# What would make an installation depend on one machine's or one company's mirror. Each is put together here, so that
# this file does not hold what it looks for.
FORBIDDEN_IN_LOCK = [
    r"https?://",
    r"--index",
    r"--extra-index",
    "--find-" + "links",
    r"--trusted",
    r"(^|\s)-[if]\s",
    r" @ ",
]
INDEX_NAMES = re.compile(
    "|".join(
        [
            "index[_-]" + "url",
            "--find-" + "links",
            "--trusted-" + "host",
            "pypi" + r"\.(org|python\.org)",
            "files\\.python" + "hosted",
            r"https?://[^\s\"']*/simp" + r"le\b",
            r"registry\.np" + "mjs",
            r"proxy\.golang" + r"\.org",
        ]
    ),
    re.IGNORECASE,
)


def entries() -> list[str]:
    """Each requirement with its hashes as one line, as pip reads it."""
    joined = LOCK.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def pins() -> set[str]:
    return {entry.split("==")[0] for entry in entries()}


def pyprojects() -> list[Path]:
    folders = ("libs/*", "services/*", "deploy/*", "tools/*", "loadtest")
    return sorted(path for folder in folders for path in ROOT.glob(f"{folder}/pyproject.toml"))


def normalised(requirement: str) -> str:
    """The name of a requirement as the lock spells it: without extras, versions and markers."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def test_every_pin_has_an_exact_version_and_hashes() -> None:
    assert len(entries()) > 30
    for entry in entries():
        head, *hashes = entry.split(" --hash")
        assert PIN.fullmatch(head.strip()), entry
        assert hashes, f"{head} has no hash"
        assert all(HASH.fullmatch(f"--hash{one.strip()}") for one in hashes), entry


@pytest.mark.parametrize("pattern", FORBIDDEN_IN_LOCK)
def test_lock_names_no_index_and_no_address(pattern: str) -> None:
    found = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if re.search(pattern, line)]
    assert found == []


def test_no_committed_file_names_a_package_index() -> None:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    found = []
    for name in filter(None, names.split("\0")):
        path = ROOT / name
        if path.is_file():
            text = path.read_bytes().decode(errors="replace")
            found += [f"{name}: {match[0]}" for match in INDEX_NAMES.finditer(text)]
    assert found == []


def test_index_names_are_recognised() -> None:
    for bad in ("--index" + "-url x", "PIP_INDEX" + "_URL=x", "https://mirror.example/simp" + "le/", "pypi" + ".org"):
        assert INDEX_NAMES.search(bad), bad
    assert not INDEX_NAMES.search("index of a topic; https://example.org/simply")


@pytest.mark.parametrize("path", pyprojects(), ids=lambda path: path.parent.name)
def test_each_dependency_is_pinned(path: Path) -> None:
    project = tomllib.loads(path.read_text(encoding="utf-8"))
    own = {tomllib.loads(other.read_text(encoding="utf-8"))["project"]["name"] for other in pyprojects()}
    wanted = {normalised(one) for one in project["project"]["dependencies"] + project["build-system"]["requires"]}
    assert wanted <= pins() | own, wanted - pins() - own


def test_each_requirement_of_the_input_is_pinned() -> None:
    lines = (ROOT / "requirements.in").read_text(encoding="utf-8").splitlines()
    wanted = {normalised(line) for line in lines if line.strip() and not line.startswith("#")}
    assert wanted <= pins(), wanted - pins()
