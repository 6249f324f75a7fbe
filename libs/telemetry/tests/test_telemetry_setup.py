"""What a process logs once it is set up, read from its stderr."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from typing import Any

import pytest

from telemetry import configure

PROGRAM = """
import logging
import structlog
from opentelemetry import trace
from telemetry import configure, current_trace_id
configure("first")
configure("mq-test", "INFO")
logging.getLogger("plain").info("listening on %s", "127.0.0.1:9876", extra={"port": 9876})
logging.getLogger("plain").debug("not shown")
structlog.get_logger("bound").warning("odd", count=3)
with trace.get_tracer("t").start_as_current_span("work"):
    logging.getLogger("plain").error("inside")
    print(current_trace_id())
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("plain").exception("failed")
print(trace.get_tracer_provider().resource.attributes["service.name"])
"""


@pytest.fixture(scope="module")
def output() -> tuple[list[dict[str, Any]], list[str]]:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    return [json.loads(line) for line in run.stderr.splitlines()], run.stdout.splitlines()


def test_each_line_is_json_with_service_level_logger_and_time(output: tuple[list[dict[str, Any]], list[str]]) -> None:
    lines, _ = output
    assert [line["event"] for line in lines] == ["listening on 127.0.0.1:9876", "odd", "inside", "failed"]
    assert {line["service"] for line in lines} == {"mq-test"}
    assert [line["level"] for line in lines] == ["info", "warning", "error", "error"]
    assert [line["logger"] for line in lines] == ["plain", "bound", "plain", "plain"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT.*Z", line["timestamp"]) for line in lines)


def test_lines_carry_extra_fields_and_exceptions(output: tuple[list[dict[str, Any]], list[str]]) -> None:
    lines, _ = output
    assert lines[0]["port"] == 9876
    assert lines[1]["count"] == 3
    assert "ZeroDivisionError" in lines[3]["exception"]


def test_lines_inside_a_span_carry_its_trace_id(output: tuple[list[dict[str, Any]], list[str]]) -> None:
    lines, printed = output
    assert re.fullmatch("[0-9a-f]{32}", printed[0])
    assert [line["trace_id"] for line in lines] == [None, None, printed[0], None]


def test_the_first_call_names_the_tracer_provider(output: tuple[list[dict[str, Any]], list[str]]) -> None:
    assert output[1][1] == "first"


def test_a_terminal_gets_text_for_people() -> None:
    controller, terminal = pty.openpty()
    try:
        program = "import logging, telemetry; telemetry.configure('mq-test'); logging.getLogger('x').info('hello')"
        subprocess.run([sys.executable, "-c", program], stderr=terminal, check=True, timeout=60)
        shown = os.read(controller, 4096).decode()
    finally:
        os.close(controller)
        os.close(terminal)
    assert "hello" in shown
    assert "mq-test" in shown
    with pytest.raises(json.JSONDecodeError):
        json.loads(shown)


def test_an_unknown_level_is_rejected() -> None:
    with pytest.raises(ValueError, match="'LOUD' is none of DEBUG, INFO"):
        configure("mq-test", "LOUD")
