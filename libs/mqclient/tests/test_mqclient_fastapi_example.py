"""The example in the documentation of mqclient.fastapi does what it says, with the test that it shows."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import textwrap
from pathlib import Path

import pytest

import mqclient.fastapi
from mq_broker.embedded import EmbeddedBroker


def blocks() -> tuple[str, str]:
    """The application, and the test of it."""
    documentation = inspect.getdoc(mqclient.fastapi) or ""
    lines = [line for line in documentation.splitlines() if not line or line.startswith("    ")]
    text = textwrap.dedent("\n".join(lines))
    application, marker, test = text.partition("mq.url =")
    return application, marker + test


@pytest.mark.mechanism("Q3")
async def test_an_order_closes_after_thirty_minutes(
    tmp_path: Path, broker: EmbeddedBroker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    application, test = blocks()
    (tmp_path / "shop_example.py").write_text(application, encoding="utf-8")
    script = "import httpx\nfrom shop_example import app, mq\n\n\nasync def run(broker, clock):\n"
    script += textwrap.indent(test, "    ")
    (tmp_path / "run_example.py").write_text(script, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("run_example")
    async with asyncio.timeout(30):
        await module.run(broker, broker.clock)
    assert capsys.readouterr().out == "closing 17\n"
    for name in ("run_example", "shop_example"):
        monkeypatch.delitem(sys.modules, name)


def test_the_application_is_written_in_ten_lines() -> None:
    application, _ = blocks()
    lines = [line for line in application.splitlines() if line and not line.startswith(("from ", "import "))]
    assert len(lines) <= 10
