"""`@pytest.mark.needs("maven")`: skipped, and listed in the last line, where the machine does not have it.

With REQUIRE=all in the environment the test fails instead, unless the kernel is what forbids it. Files named
`test_system_*.py` are collected with `--system`, and only they; a file that is named on the command line always is.
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
SYSTEM_FILES = "test_system_*.py"
TEST_FILES = "test_*.py"
PROPERTY = "skipped capability"  # of a test's report
REQUIRE, REQUIRE_ALL = "REQUIRE", "all"

_SKIPPED = pytest.StashKey[set[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--system", action="store_true", help=f"run {SYSTEM_FILES} and nothing else")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{MARKER}(capability, ...): skip where the machine lacks one; REQUIRE=all fails"
    )
    config.stash[_SKIPPED] = set()
    wish = os.environ.get(REQUIRE, "")
    if wish not in ("", REQUIRE_ALL):
        raise pytest.UsageError(f"{REQUIRE}={wish}: {REQUIRE_ALL} is the only value there is")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Test files of the other kind than asked for stay out."""
    if not collection_path.match(TEST_FILES) or _is_named(collection_path, config):
        return None
    is_system = collection_path.match(SYSTEM_FILES)
    return True if is_system != bool(config.getoption("--system")) else None


def _is_named(path: Path, config: pytest.Config) -> bool:
    named = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    return any(one.is_file() and one.resolve() == path.resolve() for one in named)


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class) -> Generator[None, Any, Any]:
    """A name that nobody knows is an error of its file, and not a test that is skipped for ever."""
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
        if os.environ.get(REQUIRE) == REQUIRE_ALL and not missing.by_kernel:
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
    """The last line of all; a worker's lines are nobody's."""
    yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        reporter.ensure_newline()
        names: set[str] = session.config.stash[_SKIPPED]
        reporter.write_line(f"skipped capabilities: {', '.join(sorted(names)) or 'none'}")
