"""The fixtures for tests of code that uses the queue, in a pytest of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LIMIT_S = 60  # only a hang takes so long
ANYIO_TEST = """
import pytest
import pytest_asyncio
from mqclient import Message, Producer

@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest_asyncio.fixture
async def producer(broker):
    async with Producer("writers", broker.url) as producer:
        yield producer

@pytest.mark.anyio
async def test_idle(producer, broker, clock):
    await producer.send(Message("orders", b"1"))
    await clock.advance(5)
    await broker.idle()
    await producer.shutdown()
"""


def run_pytest(folder: Path, test: str, *arguments: str) -> tuple[int, str]:
    """Exit code and what was printed."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(test)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments, "test_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.returncode, done.stdout


def test_with_anyios_marker_in_auto_mode_the_fixture_says_why_it_cannot_work(tmp_path: Path) -> None:
    code, printed = run_pytest(tmp_path, ANYIO_TEST, "-o", "asyncio_mode=auto")
    assert code == 1
    assert "test_idle runs on anyio's event loop, the broker on pytest-asyncio's" in printed
    assert "remove the marker, or set asyncio_mode = strict" in printed


@pytest.mark.parametrize("marker", ["anyio", "asyncio"])
def test_in_strict_mode_both_markers_work(tmp_path: Path, marker: str) -> None:
    code, printed = run_pytest(
        tmp_path, ANYIO_TEST.replace("mark.anyio", f"mark.{marker}"), "-o", "asyncio_mode=strict"
    )
    assert (code, "1 passed" in printed) == (0, True), printed
