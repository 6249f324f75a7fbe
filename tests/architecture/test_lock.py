"""The layers of requirements/: pinned, hashed, in agreement, and no file of the project names a package index."""

from __future__ import annotations

import itertools
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
LAYERS = ("runtime", "pipeline", "development")  # each has all of the one before
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")

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


def text_of(layer: str) -> str:
    return (REQUIREMENTS / f"{layer}.lock").read_text(encoding="utf-8")


def entries(layer: str) -> list[str]:
    """Each requirement with its hashes as one line, as pip reads it."""
    joined = text_of(layer).replace("\\\n", " ")
    return [line.strip() for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def names(layer: str) -> set[str]:
    return {entry.split("==")[0] for entry in entries(layer)}


def pins(layer: str) -> dict[str, set[str]]:
    """`name==version` -> its hashes."""
    parts = [entry.split(" --hash=") for entry in entries(layer)]
    return {head.split(";")[0].strip(): {one.strip() for one in hashes} for head, *hashes in parts}


def packages_of(layer: str) -> list[Path]:
    """The folders of this project's packages that the Makefile installs with a layer."""
    (names,) = re.findall(rf"^{layer.upper()}_PACKAGES := (.*)$", MAKEFILE, re.MULTILINE)
    return [ROOT / name for name in names.split()]


def pyprojects() -> list[Path]:
    folders = ("libs/*", "services/*", "deploy/*", "tools/*", "examples/*", "loadtest")
    return sorted(path for folder in folders for path in ROOT.glob(f"{folder}/pyproject.toml"))


def project(path: Path) -> dict[str, Any]:
    """What a pyproject.toml says of its package."""
    described: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return described


def normalised(requirement: str) -> str:
    """The name of a requirement as the lock spells it: without extras, versions and markers."""
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found, requirement
    return re.sub(r"[-_.]+", "-", found[0]).lower()


@pytest.mark.parametrize("layer", LAYERS)
def test_every_pin_has_an_exact_version_and_hashes(layer: str) -> None:
    assert len(entries(layer)) > 30
    for entry in entries(layer):
        head, *hashes = entry.split(" --hash")
        assert PIN.fullmatch(head.strip()), entry
        assert hashes, f"{head} has no hash"
        assert all(HASH.fullmatch(f"--hash{one.strip()}") for one in hashes), entry


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("pattern", FORBIDDEN_IN_LOCK)
def test_lock_names_no_index_and_no_address(pattern: str, layer: str) -> None:
    assert [line for line in text_of(layer).splitlines() if re.search(pattern, line)] == []


def test_the_layers_agree_on_every_version_and_hash() -> None:
    everything = pins("development")
    for smaller, larger in itertools.pairwise(LAYERS):
        assert names(smaller) < names(larger)
    for layer in LAYERS[:-1]:
        assert {pin: hashes for pin, hashes in pins(layer).items() if everything.get(pin) != hashes} == {}


def test_the_demonstration_installs_no_spark_and_nothing_that_only_development_needs() -> None:
    assert names("runtime").isdisjoint({"pyspark", "pandas", "locust", "sphinx", "pytest", "mypy", "matplotlib"})
    assert "pyspark" in names("pipeline")
    assert names("pipeline").isdisjoint({"locust", "sphinx", "pytest", "mypy"})


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


@pytest.mark.parametrize("layer", LAYERS)
def test_each_dependency_is_pinned_in_the_layer_of_its_package(layer: str) -> None:
    own = {project(path)["name"] for path in pyprojects()}
    for path in packages_of(layer):
        wanted = {normalised(one) for one in project(path / "pyproject.toml")["dependencies"]} - own
        assert wanted <= names(layer), (path.name, wanted - names(layer))


def test_what_builds_the_packages_is_in_the_first_layer() -> None:
    for path in pyprojects():
        needed = tomllib.loads(path.read_text(encoding="utf-8"))["build-system"]["requires"]
        assert {normalised(one) for one in needed} <= names("runtime"), path


def test_a_layer_has_the_packages_that_its_packages_need() -> None:
    installed: set[str] = set()
    own = {project(path)["name"] for path in pyprojects()}
    for layer in LAYERS:
        installed |= {project(path / "pyproject.toml")["name"] for path in packages_of(layer)}
        for path in packages_of(layer):
            wanted = {normalised(one) for one in project(path / "pyproject.toml")["dependencies"]} & own
            assert wanted <= installed, (path.name, wanted - installed)
    assert installed == own


@pytest.mark.parametrize("layer", LAYERS)
def test_each_requirement_of_the_input_is_pinned(layer: str) -> None:
    lines = (REQUIREMENTS / f"{layer}.in").read_text(encoding="utf-8").splitlines()
    wanted = {normalised(line) for line in lines if line.strip() and line[0] not in "#-"}
    assert wanted <= names(layer), wanted - names(layer)
