"""The command line of the servers: RocketMQ's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from mqproto.conf import build_config, key
from mqproto.config_source import Command, ConfigFormat, Started, ignored, parse_properties


@dataclass(frozen=True)
class Example:
    name: str = key(default="a", important=True)
    port: int = 1
    namesrv_addr: str = ""


def parse(pairs: Mapping[str, str]) -> Example:
    return build_config(Example, pairs)


FORMAT = ConfigFormat(Example, parse, ignored("no threads", "threads"))
COMMAND = Command("mq-example", "An example.", "1.2", "example.conf", FORMAT, has_name_servers=True)


@pytest.fixture(autouse=True)
def _no_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)


def start(*arguments: str) -> Started[Example]:
    found: list[Started[Example]] = []

    def run(started: Started[Example]) -> int:
        found.append(started)
        return 7

    assert COMMAND.main(list(arguments), run) == 7
    return found[0]


def reject_running(_: Started[Example]) -> int:
    raise AssertionError("nothing is started")


@pytest.mark.parametrize("option", ["-c", "--configFile"])
def test_the_file_and_the_pairs_of_the_command_line(tmp_path: Path, option: str) -> None:
    file = tmp_path / "example.conf"
    file.write_text("name=b\nport=2\nthreads=9\n")
    started = start(option, str(file), "port=3")
    assert started.config == Example("b", 3)
    assert started.warning == "keys of RocketMQ that have no effect here: threads (no threads)"
    file.write_text("name=c\n")
    assert started.source.read()[0] == Example("c", 3)


def test_name_servers_come_from_option_file_or_environment_in_this_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "example.conf"
    file.write_text("namesrvAddr=file:1\n")
    assert start().config.namesrv_addr == ""
    monkeypatch.setenv("NAMESRV_ADDR", "environment:1")
    assert start().config.namesrv_addr == "environment:1"
    assert start("-c", str(file)).config.namesrv_addr == "file:1"
    assert start("-c", str(file), "-n", "option:1;option:2").config.namesrv_addr == "option:1;option:2"
    assert start("-n", "option:1", "namesrvAddr=pair:1").config.namesrv_addr == "pair:1"
    monkeypatch.setenv("NAMESRV_ADDR", "")
    assert start().config.namesrv_addr == ""


def test_a_service_without_name_servers_does_not_look_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", "environment:1")
    without = Command("mq-example", "An example.", "1.2", "example.conf", FORMAT)

    def run(started: Started[Example]) -> int:
        assert started.config == Example()
        return 7

    assert without.main([], run) == 7
    with pytest.raises(SystemExit):
        without.main(["-n", "h:1"], reject_running)


@pytest.mark.parametrize("option", ["-p", "--printConfigItem"])
def test_p_prints_the_whole_configuration_as_a_file(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert COMMAND.main([option, "name=back\\slash"], reject_running) == 0
    printed = capsys.readouterr().out
    assert printed == "name=back\\\\slash\nport=1\nnamesrvAddr=\n"
    assert parse(parse_properties(printed, "printed")) == Example("back\\slash")


@pytest.mark.parametrize("option", ["-m", "--printImportantConfig"])
def test_m_prints_what_is_important(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert COMMAND.main([option], reject_running) == 0
    assert capsys.readouterr().out == "name=a\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["port=x"], "port='x' is not a whole number"),
        (["port"], "command line: 'port' is not of the form key=value"),
        (["prt=1"], "unknown configuration key 'prt'; did you mean port?"),
        (["-p", "port=x"], "port='x' is not a whole number"),
        (["-c", "/nonexistent/example.conf"], "/nonexistent/example.conf cannot be read"),
    ],
)
def test_a_bad_configuration_is_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], sentence: str
) -> None:
    assert COMMAND.main(arguments, reject_running) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("mq-example: ")
    assert sentence in shown.err
    assert (shown.err.count("\n"), shown.out) == (1, "")


@pytest.mark.parametrize(("option", "shown"), [("--version", "mq-example 1.2"), ("-h", "example.conf")])
def test_version_and_help_are_shown(capsys: pytest.CaptureFixture[str], option: str, shown: str) -> None:
    with pytest.raises(SystemExit) as ended:
        COMMAND.main([option], reject_running)
    assert ended.value.code == 0
    assert shown in capsys.readouterr().out
