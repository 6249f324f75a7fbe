"""`@pytest.mark.needs("maven")`: skipped, and listed in the last line, where the machine does not have it.

With REQUIRE=all in the environment the test fails instead, unless nothing that could be installed would change it.

Tests of the system run with `--system`, and only they: files named `test_system_*.py`, and in other files what is
marked `system`, such as a test's run on PostgreSQL. A file that is named on the command line is always collected, and
with `--system` as well if it is not one of the system's; a test that is named there always runs.

Works under pytest-xdist: what a worker skips travels with its reports.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest
from capabilities import CAPABILITIES, absence

MARKER = "needs"
SYSTEM_MARKER = "system"
SYSTEM_FILES = "test_system_*.py"
TEST_FILES = "test_*.py"
PROPERTY = "skipped capability"  # of a test's report
REQUIRE, REQUIRE_ALL = "REQUIRE", "all"

_SKIPPED = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--system", action="store_true", help=f"run {SYSTEM_FILES} and what is marked system")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(capability, ...): skip where the machine lacks one; REQUIRE=all fails"
    )
    config.addinivalue_line("markers", f"{SYSTEM_MARKER}: runs with --system, as {SYSTEM_FILES} do")
    config.stash[_SKIPPED] = set()
    wish = os.environ.get(REQUIRE, "")
    if wish not in ("", REQUIRE_ALL):
        raise pytest.UsageError(f"{REQUIRE}={wish}: {REQUIRE_ALL} is the only value there is")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without --system the system's files stay out; any file may have a test that is marked."""
    is_wanted = config.getoption("--system") or _is_named(collection_path, config)
    return True if collection_path.match(SYSTEM_FILES) and not is_wanted else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of the other kind than asked for stay out. They are not counted: they are half of all there is."""
    items[:] = [item for item in items if _is_wanted(item, config)]


def _is_wanted(item: pytest.Item, config: pytest.Config) -> bool:
    if item.path.match(SYSTEM_FILES):
        return True  # else its file had stayed out
    if item.get_closest_marker(SYSTEM_MARKER) is None:
        return not config.getoption("--system") or _is_named(item.path, config)
    return bool(config.getoption("--system")) or any(item.nodeid.startswith(name) for name in _named_tests(config))


def _is_named(path: Path, config: pytest.Config) -> bool:
    named = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return any(one.is_file() and one.resolve() == path.resolve() for one in named)


def _named_tests(config: pytest.Config) -> list[str]:
    """The node ids on the command line that name one run of a test: those with its parameters."""
    return [argument for argument in config.args if argument.endswith("]")]


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class) -> Generator[None, Any, Any]:
    """An unknown name is an error of its file, and not a test that is skipped for ever."""
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Item):
            _check_names(item, collector)
    return made


def _check_names(item: pytest.Item, collector: pytest.Collector) -> None:
    for mark in item.iter_markers(MARKER):
        unknown = [name for name in mark.args if name not in CAPABILITIES]
        if unknown or mark.kwargs or not mark.args:
            known = ", ".join(map(repr, CAPABILITIES))
            raise collector.CollectError(f"{item.name}: {MARKER}{mark.args!r}: the capabilities are {known}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in dict.fromkeys(name for mark in item.iter_markers(MARKER) for name in mark.args):
        missing = absence(name)
        if missing is None:
            continue
        if os.environ.get(REQUIRE) == REQUIRE_ALL and not missing.for_good:
            pytest.fail(f"{REQUIRE}={REQUIRE_ALL}, and {name} is missing: {missing.reason}", pytrace=False)
        item.user_properties.append((PROPERTY, name))
        pytest.skip(f"needs {name}: {missing.reason}")


class _Skipped:
    """Collects from the reports, which come from this process or from its workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._names = config.stash[_SKIPPED]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._names.update(_properties(report.user_properties))


def _properties(pairs: Iterable[tuple[str, object]]) -> set[str]:
    return {str(value) for name, value in pairs if name == PROPERTY}


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.pluginmanager.register(_Skipped(session.config), "skipped-capabilities")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, None, None]:
    """The last line of all; a worker's lines are not shown."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        reporter.ensure_newline()
        names: set[str] = session.config.stash[_SKIPPED]
        reporter.write_line(f"skipped capabilities: {', '.join(sorted(names)) or 'none'}")
