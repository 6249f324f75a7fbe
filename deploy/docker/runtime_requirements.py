"""Takes what an image needs out of requirements/runtime.lock: pins with hashes, and the packages of ours to build.

python deploy/docker/runtime_requirements.py          writes requirements/<part>.lock and requirements/<part>.packages

Ours are read from their pyproject.toml files; what the others need, from what is installed beside this interpreter,
which is what the lock pins. What an image does not need, such as what only the demonstration runs, is not in its files.
"""

from __future__ import annotations

import itertools
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "requirements"
LOCK = ROOT / "requirements" / "runtime.lock"
OUR_FOLDERS = ("libs/*", "services/*", "tools/*")

# Part -> what its image is for.
PARTS: Mapping[str, tuple[str, ...]] = {
    "queue": ("hourglass-mq-namesrv", "hourglass-mq-broker", "hourglass-mqadmin"),
    "shop": ("hourglass-orders", "hourglass-payments", "hourglass-gateway"),
    "build": ("hatchling",),  # of no image: what makes wheels of our packages
}

# A lock is for every machine that an image may be built for.
ENVIRONMENTS = [
    {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    for python, machine in itertools.product(("3.11", "3.12", "3.13"), ("x86_64", "aarch64"))
]


def our_packages() -> dict[str, Path]:
    """Name -> folder, relative to the root."""
    found = {}
    for path in sorted(path for pattern in OUR_FOLDERS for path in ROOT.glob(f"{pattern}/pyproject.toml")):
        found[_project(path)["name"]] = path.parent.relative_to(ROOT)
    return found


def needed(roots: Iterable[str]) -> set[str]:
    """The canonical names of all that `roots` need, with themselves."""
    ours = our_packages()
    waiting = [Requirement(root) for root in roots]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key not in seen:
            seen.add(key)
            waiting += _dependencies(*key, ours)
    return {name for name, _ in seen}


def lock_entries() -> dict[str, str]:
    """Canonical name -> its lines in the lock, pin and hashes."""
    entries = re.split(r"\n(?=[a-z0-9])", LOCK.read_text(encoding="utf-8").strip())
    return {canonicalize_name(entry.partition("==")[0]): entry.strip() + "\n" for entry in entries}


def files() -> dict[str, str]:
    """Name -> content of each file in requirements/."""
    entries, ours = lock_entries(), our_packages()
    made = {}
    for part, roots in PARTS.items():
        names = needed(roots)
        made[f"{part}.lock"] = "".join(entries[name] for name in sorted(names - set(ours)))
        if packages := [f"./{ours[name]}\n" for name in sorted(names & set(ours))]:
            made[f"{part}.packages"] = "".join(packages)
    return made


def _dependencies(name: str, extras: frozenset[str], ours: Mapping[str, Path]) -> Iterator[Requirement]:
    for text in _ours(ROOT / ours[name] / "pyproject.toml", extras) if name in ours else requires(name) or []:
        requirement = Requirement(text)
        wanted = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(
            requirement.marker.evaluate({**environment, **extra}) for environment in ENVIRONMENTS for extra in wanted
        ):
            yield requirement


def _ours(path: Path, extras: frozenset[str]) -> list[str]:
    project = _project(path)
    optional = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(text for extra in extras for text in optional[extra])]


def _project(path: Path) -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    return project


def main() -> int:
    """Write the files."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
        print(f"{name}: {text.count('==') or text.count('./')} packages")
    return 0


if __name__ == "__main__":
    sys.exit(main())
