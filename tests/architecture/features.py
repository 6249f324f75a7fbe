"""Writes the proofs of docs/features.md from the tests: `python tests/architecture/features.py` (make features).

A test names the mechanisms that it proves: `@pytest.mark.mechanism("P11", "P12")`. The table has the id, the title and
the code of each; its last column is written here. A proof that is no test (`doc: ...`, `not yet: ...`) stays as it is.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs/features.md"

ROW = re.compile(r"\| (?P<id>[A-Z][0-9]+) \|.*\| (?P<proof>[^|]+) \|")


def marked_tests(source: str) -> Iterator[tuple[str, list[str]]]:
    """Each marked test of a file as `test` or `Class::test`, with the ids that it names."""
    for statement in ast.parse(source).body:
        yield from _marked(statement, "")


def _marked(statement: ast.stmt, prefix: str) -> Iterator[tuple[str, list[str]]]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        name = prefix + statement.name
        if ids := [one for decorator in statement.decorator_list for one in _ids(decorator)]:
            yield name, ids
        if isinstance(statement, ast.ClassDef):
            for inner in statement.body:
                yield from _marked(inner, f"{name}::")
    # a state machine's tests are an assignment: test_histories = pytest.mark.mechanism("R1")(Machine.TestCase)
    elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
        target = statement.targets[0]
        if isinstance(target, ast.Name) and (ids := _ids(statement.value.func)):
            yield prefix + target.id, ids


def _ids(decorator: ast.expr) -> list[str]:
    if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.mechanism":
        return [ast.literal_eval(argument) for argument in decorator.args]
    return []


def proofs() -> dict[str, list[str]]:
    """The node ids of the tests that prove each mechanism, sorted."""
    listed = subprocess.run(["git", "ls-files", "*test_*.py"], cwd=ROOT, check=True, capture_output=True, text=True)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for path in sorted(listed.stdout.split()):
        source = (ROOT / path).read_text(encoding="utf-8")
        for name, ids in marked_tests(source) if "mark.mechanism" in source else ():
            for one in ids:
                found[one].append(f"{path}::{name}")
    return dict(found)


def with_proofs(table: str, found: dict[str, list[str]]) -> str:
    """The table with these proofs. Raises ValueError for ids that it does not have."""
    left = dict(found)

    def row(match: re.Match[str]) -> str:
        nodes = left.pop(match["id"], None)
        if nodes is None:
            return match[0]
        start = match.start("proof") - match.start()
        return f"{match[0][:start]}{', '.join(f'`{node}`' for node in nodes)} |"

    text = "\n".join(ROW.sub(row, line) for line in table.split("\n"))
    if left:
        raise ValueError(f"tests name mechanisms that docs/features.md does not have: {sorted(left)}")
    return text


if __name__ == "__main__":
    TABLE.write_text(with_proofs(TABLE.read_text(encoding="utf-8"), proofs()), encoding="utf-8")
