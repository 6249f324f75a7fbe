"""The name server's configuration: what is taken, and the sentence for what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from mq_namesrv.__main__ import main
from mq_namesrv.config import NamesrvConfig, parse_config
from mqproto.conf import ConfigError


def test_defaults_are_those_of_the_mission() -> None:
    config = parse_config({})
    assert (config.bind_address, config.listen_port) == ("127.0.0.1", 9876)
    assert config.scan_not_active_broker_interval_ms == 10_000
    assert config.broker_expire_timeout_ms == 120_000


def test_rocketmq_key_names_are_understood() -> None:
    pairs = {"listenPort": "0", "bindAddress": "0.0.0.0", "scanNotActiveBrokerInterval": "5000", "logLevel": "DEBUG"}
    assert parse_config(pairs) == NamesrvConfig(
        listen_port=0, bind_address="0.0.0.0", scan_not_active_broker_interval_ms=5000, log_level="DEBUG"
    )


@pytest.mark.parametrize(
    ("pair", "sentence"),
    [
        ("listenPort=abc", "listenPort='abc' is not a whole number"),
        ("listenPort=-1", "listenPort=-1: allowed are 1 to 65535, and 0"),
        ("listenPort=65536", "listenPort=65536: allowed are 1 to 65535"),
        ("listnPort=9876", "unknown configuration key 'listnPort'; did you mean listenPort?"),
        ("bindAddress=", "bindAddress='' is neither"),
        ("bindAddress=127.0.0.1:80", "bindAddress='127.0.0.1:80' is neither"),
        ("scanNotActiveBrokerInterval=0", "scanNotActiveBrokerInterval=0: at least 1 ms"),
        ("brokerExpireTimeout=9999", "brokerExpireTimeout=9999 is shorter than scanNotActiveBrokerInterval=10000"),
        ("logLevel=loud", "logLevel='loud': allowed are DEBUG, INFO"),
    ],
)
def test_bad_value_is_refused_with_exit_code_2(pair: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, _, value = pair.partition("=")
    with pytest.raises(ConfigError):
        parse_config({name: value})
    assert main([pair]) == 2
    shown = capsys.readouterr().err
    assert sentence in shown
    assert shown.count("\n") == 1


def test_override_wins_over_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# the port\nlistenPort=1\nbrokerExpireTimeout=20000\n")
    assert main(["-c", str(file), "listenPort=70000"]) == 2
    assert "listenPort=70000" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["listenPort"], "command line, line 1: 'listenPort' is not of the form key=value"),
        (["-c", "/nonexistent/namesrv.conf"], "/nonexistent/namesrv.conf cannot be read"),
    ],
)
def test_bad_command_line_is_refused_with_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("mq-namesrv 0.")
