"""`hourglass`: which program it starts with what, and what it says of one that is not installed."""

from __future__ import annotations

import importlib.util
import runpy
import sys

import pytest

from hourglass_cli.__main__ import PROGRAMS, main


def test_the_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"  {name} " in printed for name in PROGRAMS)


def test_an_unknown_command_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["brokers"])
    assert end.value.code == 2
    assert "invalid choice: 'brokers'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "module", "passed"),
    [
        (["namesrv", "-p"], "mq_namesrv", ["hourglass namesrv", "-p"]),
        (["broker", "-c", "broker.conf"], "mq_broker", ["hourglass broker", "-c", "broker.conf"]),
        (["broker", "--help"], "mq_broker", ["hourglass broker", "--help"]),
        (["admin", "topicList", "-n", "x:1"], "mqadmin", ["hourglass admin", "topicList", "-n", "x:1"]),
        (["dump-log", "store"], "mq_broker.tools.dump_log", ["hourglass dump-log", "store"]),
        (["demo", "--folder", "here"], "hourglass_local", ["hourglass demo", "demo", "--folder", "here"]),
    ],
)
def test_a_command_runs_its_program_with_what_follows(
    arguments: list[str], module: str, passed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: ran.append((name, list(sys.argv))))
    assert main(arguments) == 0
    assert ran == [(module, passed)]


def test_what_is_not_installed_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["admin", "topicList"]) == 2
    expected = "hourglass: admin is not installed; install the package hourglass-mqadmin\n"
    assert capsys.readouterr().err == expected


def test_every_program_is_a_module_that_can_be_run() -> None:
    for program in PROGRAMS.values():
        found = importlib.util.find_spec(program.module)
        assert found is not None
        if found.submodule_search_locations is not None:
            assert importlib.util.find_spec(f"{program.module}.__main__") is not None
