"""The zoo's own rules: every bug can be put back today, and only a test that sees it counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from zoo import ROOT, ZooError, check_imports, judge, put_back, read_report, source_folder
from zoo_bugs import BUGS, Bug, Edit

CALM = "libs/osenv/src/osenv/rng.py"  # a file that no bug is in
CALM_TEST = "libs/osenv/tests/test_osenv_rng.py"


def calm_bug(old: str, new: str) -> Bug:
    return Bug("0", "none", "not at all", (Edit(CALM, old, new),), (CALM_TEST,))


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.number)
def test_every_bug_can_be_put_back(bug: Bug) -> None:
    for edit in bug.edits:
        text = (ROOT / edit.path).read_text(encoding="utf-8")
        assert text.count(edit.old) == 1, edit
        compile(text.replace(edit.old, edit.new), edit.path, "exec")
    assert len({source_folder(edit.path) for edit in bug.edits}) == 1
    for test in bug.tests:
        path, *_, name = test.split("::")
        assert re.search(rf"^ *(async )?def {name.partition('[')[0]}\(", (ROOT / path).read_text(), re.MULTILINE), test


def test_every_bug_has_one_number_and_a_line_in_the_readme() -> None:
    numbers = [bug.number for bug in BUGS]
    assert len(numbers) == len(set(numbers))
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    rows = [line for line in readme.splitlines() if re.match(r"\| \d+ \| ", line)]
    assert rows == [
        f"| {bug.number} | {bug.title} | {bug.how} | `{bug.tests[0].rpartition('::')[2]}` |" for bug in BUGS
    ]


def test_an_edit_that_does_not_fit_exactly_once_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match="0 times"):
        put_back(calm_bug("no such text", ""), tmp_path / "a")
    with pytest.raises(ZooError, match=r"[2-9] times"):
        put_back(calm_bug("def ", ""), tmp_path / "b")


def test_an_edit_that_cannot_be_imported_is_no_bug(tmp_path: Path) -> None:
    bug = calm_bug("import random\n", "import no_such_module\n")
    with pytest.raises(ZooError, match="does not import"):
        check_imports(bug, put_back(bug, tmp_path))


def test_a_bug_that_no_test_sees_is_not_caught() -> None:
    verdict = judge(calm_bug("import random\n", "import random\n\n"))
    assert "are green with the bug" in verdict.problem
    assert verdict.red == {}


def test_a_test_that_stumbles_over_the_edit_does_not_count(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase file="a.py" name="sees"><failure message="AssertionError: lost"/></testcase>'
        '<testcase file="a.py" name="stumbles"><error message="failed on setup"/></testcase>'
        '<testcase file="a.py" name="skips"><skipped/></testcase><testcase file="a.py" name="fine"/>'
        "</testsuite></testsuites>"
    )
    run = read_report(report)
    assert (run.red, run.ran) == ({"a.py::sees": "AssertionError: lost"}, 3)
    assert run.trouble == "a.py::stumbles: failed on setup"
