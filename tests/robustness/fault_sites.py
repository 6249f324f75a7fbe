"""Where the store and its tools call the disk: found in their source, and seen while they run.

Invariant: a place in the source counts as reached only when a call came from one of its lines.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import mq_broker

PACKAGE = Path(mq_broker.__file__).parent
FOLDERS = ("store", "tools")
DISK_METHODS = {"open", "exists", "list_dir", "make_dirs", "replace", "unlink", "sync_dir", "lock", "usage"}
FILE_METHODS = {"pread", "pwrite", "sync_data", "allocate", "truncate"}
HELPERS = {"replace_file", "read_file"}  # of osenv: several calls from one line


@dataclass(frozen=True, slots=True)
class Site:
    """One call in the source, or one mention of a method that something else calls; it stands on these lines."""

    file: str
    first_line: int
    last_line: int
    method: str

    def __str__(self) -> str:
        return f"{self.file}:{self.first_line} {self.method}"


@dataclass(frozen=True, slots=True)
class Seen:
    """One call while it happened: from which line of the package, and what."""

    file: str
    line: int
    method: str


def sites() -> list[Site]:
    """Every place in the store and its tools that calls the disk."""
    return [site for folder in FOLDERS for path in sorted((PACKAGE / folder).glob("*.py")) for site in _sites_in(path)]


def unreached(seen: set[Seen]) -> list[Site]:
    """The places from which nothing came."""
    return [site for site in sites() if not any(_matches(site, one) for one in seen)]


def caller(method: str) -> Seen | None:
    """The line of the package from which the running call comes; None when it comes from elsewhere."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(str(PACKAGE)):
            return Seen(str(Path(path).relative_to(PACKAGE)), frame.f_lineno, method)
        frame = frame.f_back
    return None


def _matches(site: Site, seen: Seen) -> bool:
    same_line = site.file == seen.file and site.first_line <= seen.line <= site.last_line
    return same_line and site.method in {seen.method, *HELPERS}


def _sites_in(path: Path) -> Iterator[Site]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = str(path.relative_to(PACKAGE))
    for statement in ast.walk(tree):
        if isinstance(statement, ast.stmt):
            for node in _own_nodes(statement):
                method = _method(node)
                if method is not None:
                    whole = statement if not hasattr(statement, "body") else node
                    yield Site(name, whole.lineno, whole.end_lineno or whole.lineno, method)


def _own_nodes(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement, without those of the statements in it."""
    waiting: list[ast.AST] = [child for child in ast.iter_child_nodes(statement) if not isinstance(child, ast.stmt)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]


def _method(node: ast.expr) -> str | None:
    """The disk's method that this expression names, if it does."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in HELPERS:
        return node.func.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "size":
        return "size"  # called: elsewhere a size is a number
    if not isinstance(node, ast.Attribute):
        return None
    owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
    if node.attr in FILE_METHODS or (node.attr in DISK_METHODS and owner.lstrip("_") == "disk"):
        return node.attr
    return None
