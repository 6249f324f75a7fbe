"""Configuration in RocketMQ's properties format: what is taken, and the sentence for what is not."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pytest

from mqproto.conf import ConfigError, build_config, key, parse_properties, read_properties


class Role(Enum):
    ASYNC_MASTER = 1
    SLAVE = 2


@dataclass(frozen=True, kw_only=True)
class Example:
    broker_name: str
    listen_port: int = 10911
    ratio: float = 0.5
    auto_create: bool = True
    broker_role: Role = Role.ASYNC_MASTER
    broker_ip: str = key("brokerIP1", default="127.0.0.1")
    root: Path = key("storePathRootDir", default=Path("/store"))  # noqa: RUF009 - a dataclass field

    def __post_init__(self) -> None:
        if self.listen_port < 0:
            raise ConfigError(f"listenPort={self.listen_port}: allowed are 0 to 65535")


def test_text_becomes_typed_values() -> None:
    pairs = {
        "brokerName": "a",
        "listenPort": "1",
        "ratio": "0.75",
        "autoCreate": "False",
        "brokerRole": "SLAVE",
        "brokerIP1": "10.0.0.1",
        "storePathRootDir": "/data",
    }
    assert build_config(Example, pairs) == Example(
        broker_name="a",
        listen_port=1,
        ratio=0.75,
        auto_create=False,
        broker_role=Role.SLAVE,
        broker_ip="10.0.0.1",
        root=Path("/data"),
    )


@pytest.mark.parametrize(
    ("pairs", "sentence"),
    [
        ({}, "configuration keys without a value: brokerName"),
        ({"listenProt": "1"}, "unknown configuration key 'listenProt'; did you mean listenPort?"),
        ({"brokerIP": "1"}, "did you mean brokerIP1?"),
        ({"listen_port": "1"}, "unknown configuration key 'listen_port'; did you mean listenPort?"),
        ({"zzz": "1"}, "unknown configuration key 'zzz'; known keys: autoCreate, brokerIP1, brokerName,"),
        ({"listenPort": "many"}, "listenPort='many' is not a whole number"),
        ({"listenPort": ""}, "listenPort='' is not a whole number"),
        ({"listenPort": "1.5"}, "listenPort='1.5' is not a whole number"),
        ({"ratio": "half"}, "ratio='half' is not float"),
        ({"autoCreate": "yes"}, "autoCreate='yes': allowed are true and false"),
        ({"brokerRole": "KING"}, "brokerRole='KING': allowed are ASYNC_MASTER, SLAVE"),
        ({"brokerName": "a", "listenPort": "-1"}, "listenPort=-1: allowed are 0 to 65535"),
    ],
)
def test_bad_pairs_are_refused(pairs: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_config(Example, pairs)
    assert sentence in str(caught.value)


def test_type_error_of_a_check_is_not_taken_for_a_missing_key() -> None:
    @dataclass(frozen=True)
    class Broken:
        name: str = "x"

        def __post_init__(self) -> None:
            raise TypeError("a bug in the check")

    with pytest.raises(TypeError, match="a bug in the check"):
        build_config(Broken, {})


def test_properties_have_comments_blank_lines_and_spaces() -> None:
    lines = ["# comment", "! comment", "", "  ", " a = 1 ", "b=x=y", "c=", "a=2"]
    assert parse_properties(lines, "x") == {"a": "2", "b": "x=y", "c": ""}


@pytest.mark.parametrize("line", ["a", "=1", " = "])
def test_line_that_is_no_pair_is_refused_with_its_number(line: str) -> None:
    with pytest.raises(ConfigError, match=r"^broker\.conf, line 2: .* is not of the form key=value"):
        parse_properties(["a=1", line], "broker.conf")


def test_file_is_read_and_a_bad_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    with pytest.raises(ConfigError, match=r"broker\.conf cannot be read: .*No such file"):
        read_properties(file)
    file.write_bytes(b"name=\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_properties(file)
    file.write_text("brokerName = broker-a\n")
    assert read_properties(file) == {"brokerName": "broker-a"}
