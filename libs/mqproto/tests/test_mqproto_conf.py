"""Configuration by RocketMQ's keys: what is taken, what it is given back as, and the sentence for what is not taken."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqproto.conf import (
    Changes,
    ConfigError,
    build_config,
    canonical_pairs,
    changes,
    config_pairs,
    key,
    reloaded,
)


class Role(Enum):
    ASYNC_MASTER = 1
    SLAVE = 2


@dataclass(frozen=True, kw_only=True)
class Example:
    broker_name: str = key(important=True)
    listen_port: int = key(default=10911, important=True, aliases=("listenProt",))
    ratio: float = key(default=0.5, reloadable=True)
    auto_create: bool = key(default=True, reloadable=True)
    broker_role: Role = Role.ASYNC_MASTER
    broker_ip: str = key("brokerIP1", default="127.0.0.1")
    root: Path = key("storePathRootDir", default=Path("/store"))  # noqa: RUF009 - a dataclass field

    def __post_init__(self) -> None:
        if self.listen_port < 0:
            raise ConfigError(f"listenPort={self.listen_port}: allowed are 0 to 65535")
        if self.auto_create and self.ratio > 1:
            raise ConfigError(f"ratio={self.ratio} does not go with autoCreate=true")


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
        ({"LISTENPORT": "1"}, "did you mean listenPort?"),
        ({"brokerNoleme": "1"}, "did you mean brokerName or brokerRole?"),
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
def test_bad_pairs_are_rejected(pairs: dict[str, str], sentence: str) -> None:
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


def test_a_configuration_gives_itself_back_as_the_pairs_that_make_it() -> None:
    config = Example(broker_name="a", auto_create=False)
    pairs = config_pairs(config)
    assert pairs == {
        "brokerName": "a",
        "listenPort": "10911",
        "ratio": "0.5",
        "autoCreate": "false",
        "brokerRole": "ASYNC_MASTER",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": "/store",
    }
    assert next(iter(pairs)) == "brokerName"  # in the order of the fields
    assert config_pairs(config, important_only=True) == {"brokerName": "a", "listenPort": "10911"}


@given(
    st.builds(
        Example,
        broker_name=st.text(),
        listen_port=st.integers(0),
        ratio=st.floats(0, 1),
        auto_create=st.booleans(),
        broker_role=st.sampled_from(Role),
        broker_ip=st.text(),
        root=st.text("abc/").map(Path),
    )
)
def test_any_configuration_survives_the_way_through_text(config: Example) -> None:
    assert build_config(Example, config_pairs(config)) == config


def test_an_older_spelling_is_the_same_key() -> None:
    assert canonical_pairs(Example, {"listenProt": "1", "other": "x"}, "f") == {"listenPort": "1", "other": "x"}


def test_a_key_in_both_spellings_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^f: listenProt is the older spelling of listenPort; give only one of them"):
        canonical_pairs(Example, {"listenProt": "1", "listenPort": "1"}, "f")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, Changes((), ())),
        ({"ratio": 0.6}, Changes(("ratio",), ())),
        (
            {"listen_port": 1, "auto_create": False, "broker_ip": "x"},
            Changes(("autoCreate",), ("listenPort", "brokerIP1")),
        ),
    ],
)
def test_changes_are_told_by_what_a_running_process_can_follow(values: dict[str, Any], expected: Changes) -> None:
    assert changes(Example(broker_name="a"), Example(**{"broker_name": "a", **values})) == expected


def test_only_what_may_change_is_taken_over() -> None:
    before = Example(broker_name="a", listen_port=1, ratio=0.5)
    after = Example(broker_name="b", listen_port=2, ratio=0.6, auto_create=False)
    assert reloaded(before, after) == Example(broker_name="a", listen_port=1, ratio=0.6, auto_create=False)


def test_what_makes_no_sense_with_what_stays_is_rejected() -> None:
    @dataclass(frozen=True)
    class Pair:
        low: int = 0
        high: int = key(default=9, reloadable=True)

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ConfigError(f"low={self.low} is above high={self.high}")

    with pytest.raises(ConfigError, match="low=5 is above high=3"):
        reloaded(Pair(low=5), Pair(low=1, high=3))
