"""The name server's configuration: what is taken, and the sentence for what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mq_namesrv.__main__ import main
from mq_namesrv.config import FORMAT, IGNORED_KEYS, NamesrvConfig, parse_config
from mqproto.conf import ConfigError, changes, config_pairs
from mqproto.config_source import ConfigSource, parse_properties

EXAMPLE = Path(__file__).parents[3] / "deploy/conf/namesrv.conf"


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
        ("enableControllerInNamesrv=true", "this version has no replication and no election; allowed is false"),
    ],
)
def test_bad_value_is_rejected_with_exit_code_2(pair: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, _, value = pair.partition("=")
    with pytest.raises(ConfigError):
        ConfigSource(FORMAT, options={name: value}).read()
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
        (["listenPort"], "command line: 'listenPort' is not of the form key=value"),
        (["-c", "/nonexistent/namesrv.conf"], "/nonexistent/namesrv.conf cannot be read"),
    ],
)
def test_bad_command_line_is_rejected_with_exit_code_2(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert sentence in capsys.readouterr().err


def test_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("mq-namesrv 0.")


def test_a_file_of_rocketmq_s_is_understood(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=9877\nserverWorkerThreads=8\nkvConfigPath=/x/kvConfig.json\nclusterTest=false\n")
    config, warning = ConfigSource(FORMAT, file=file).read()
    assert config == NamesrvConfig(listen_port=9877)
    assert warning == (
        "keys of RocketMQ that have no effect here: clusterTest, kvConfigPath (a name server keeps nothing on disk); "
        "serverWorkerThreads (gRPC takes the place of Netty and has no such setting)"
    )


def test_no_key_is_both_known_and_without_effect() -> None:
    assert config_pairs(NamesrvConfig()).keys() & IGNORED_KEYS.keys() == set()


def test_the_two_times_and_the_log_level_may_change_while_it_runs() -> None:
    other = NamesrvConfig(
        bind_address="0.0.0.0",
        listen_port=1,
        scan_not_active_broker_interval_ms=1,
        broker_expire_timeout_ms=1,
        log_level="DEBUG",
    )
    differ = changes(NamesrvConfig(), other)
    assert differ.reloadable == ("scanNotActiveBrokerInterval", "brokerExpireTimeout", "logLevel")
    assert differ.fixed == ("bindAddress", "listenPort")


def test_the_example_is_the_default_and_has_every_key() -> None:
    assert ConfigSource(FORMAT, file=EXAMPLE).read() == (NamesrvConfig(), "")
    text = re.sub(r"^#(\w+ *=)", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert parse_properties(text, "example") == config_pairs(NamesrvConfig())
