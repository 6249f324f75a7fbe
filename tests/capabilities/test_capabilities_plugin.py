"""Tests that need more than pip packages: skipped and named in the last line, or red with REQUIRE=all.

Each test runs pytest on a small project of its own, in which "moon" is forbidden by the kernel, "tool" is not
installed, and "air" is there.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

CONFTEST = """
import capabilities as c

for name, missing in {"air": None, "tool": c.Absence("not installed: tool"), "moon": c.Absence("no air", True)}.items():
    c.CAPABILITIES[name] = c.Capability(name, (), name == "moon", lambda missing=missing: missing)
"""

TESTS = """
import pytest

@pytest.mark.needs("air")
def test_there(): pass

@pytest.mark.needs("tool")
def test_tool(): raise AssertionError("ran")

@pytest.mark.needs("air", "moon")
class TestMoon:
    def test_on_it(self): raise AssertionError("ran")
"""


def run_pytest(project: Path, *arguments: str, require: str = "") -> tuple[int, list[str]]:
    """(exit code, lines)."""
    environment = os.environ | {
        "PYTHONPATH": str(HERE),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_ADDOPTS": "",
        "REQUIRE": require,
    }
    (project / "pytest.ini").write_text("[pytest]\naddopts = -q --strict-markers -p no:cacheprovider\n")
    command = [sys.executable, "-m", "pytest", "-p", "capabilities_plugin", *arguments]
    run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return run.returncode, run.stdout.splitlines() + run.stderr.splitlines()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_ordinary.py").write_text(TESTS)
    return tmp_path


@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n", "2"]], ids=["one process", "xdist"])
def test_missing_capabilities_skip_and_are_the_last_line(project: Path, workers: list[str]) -> None:
    code, lines = run_pytest(project, *workers)
    assert code == 0
    assert lines[-1] == "skipped capabilities: moon, tool"
    assert "1 passed, 2 skipped" in lines[-2]


def test_the_last_line_says_none_when_nothing_was_skipped(project: Path) -> None:
    code, lines = run_pytest(project, "-k", "there")
    assert (code, lines[-1]) == (0, "skipped capabilities: none")


@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n", "2"]], ids=["one process", "xdist"])
def test_required_capabilities_fail_unless_the_kernel_forbids_them(project: Path, workers: list[str]) -> None:
    code, lines = run_pytest(project, *workers, require="all")
    assert code == 1
    assert lines[-1] == "skipped capabilities: moon"
    assert "1 passed, 1 skipped, 1 error" in lines[-2]
    assert any("REQUIRE=all, and tool is missing: not installed: tool" in line for line in lines)


@pytest.mark.parametrize("mark", ['needs("warp drive")', "needs()", "needs", 'needs(name="air")'])
@pytest.mark.parametrize("workers", [[], ["-p", "xdist.plugin", "-n", "1"]], ids=["one process", "xdist"])
def test_an_unknown_capability_is_an_error_at_collection(project: Path, mark: str, workers: list[str]) -> None:
    (project / "test_ordinary.py").write_text(f"import pytest\n\n@pytest.mark.{mark}\ndef test_it(): pass\n")
    code, lines = run_pytest(project, *workers)
    assert code != 0
    assert any("the capabilities are 'java', 'maven', 'loop device'" in line for line in lines)


def test_another_value_of_require_is_rejected(project: Path) -> None:
    code, lines = run_pytest(project, require="some")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert any("REQUIRE=some" in line for line in lines)


def test_system_files_run_with_their_option_or_by_name_and_else_never(project: Path) -> None:
    (project / "test_ordinary.py").write_text("def test_ordinary(): pass\n")
    (project / "test_system_it.py").write_text("def test_system(): pass\n")

    def collected(*arguments: str) -> list[str]:
        return [
            line.rpartition("::")[2] for line in run_pytest(project, "--collect-only", *arguments)[1] if "::" in line
        ]

    assert collected() == ["test_ordinary"]
    assert collected("--system") == ["test_system"]
    assert collected("test_system_it.py") == ["test_system"]
    assert collected("test_system_it.py::test_system") == ["test_system"]
    assert collected("--system", "test_ordinary.py") == ["test_ordinary"]


def test_a_run_that_is_marked_system_is_one_of_the_system_in_any_file(project: Path) -> None:
    (project / "test_ordinary.py").write_text("""
import pytest

@pytest.fixture(params=["small", pytest.param("large", marks=pytest.mark.system)])
def size(request): return request.param

def test_both(size): pass
def test_ordinary(): pass
""")
    (project / "test_system_it.py").write_text("def test_system(): pass\n")

    def collected(*arguments: str) -> list[str]:
        lines = run_pytest(project, "--collect-only", *arguments)[1]
        return [line.rpartition("::")[2] for line in lines if "::" in line]

    assert collected() == ["test_both[small]", "test_ordinary"]
    assert collected("--system") == ["test_both[large]", "test_system"]
    assert collected("test_ordinary.py") == ["test_both[small]", "test_ordinary"]
    assert collected("--system", "test_ordinary.py") == ["test_both[small]", "test_both[large]", "test_ordinary"]
    assert collected("test_ordinary.py::test_both[large]") == ["test_both[large]"]
