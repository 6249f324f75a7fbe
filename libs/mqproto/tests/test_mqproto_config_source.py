"""Where a configuration comes from, what of RocketMQ's is passed over, and what a running process takes over later.

The file format: what RocketMQ's files use is read as java.util.Properties reads it, and what misleads is rejected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqproto.conf import ConfigError, build_config, key
from mqproto.config_source import (
    ConfigFormat,
    ConfigSource,
    ReloadableConfig,
    format_properties,
    ignored,
    parse_assignments,
    parse_properties,
    read_properties,
    take_ignored,
)

IGNORED = {**ignored("no threads", "sendThreads pullThreads"), **ignored("no access control", "acl", allowed="false")}


@dataclass(frozen=True)
class Example:
    name: str = "a"
    port: int = key(default=1, aliases=("prot",))
    size: int = key(default=4, reloadable=True)
    count: int = key(default=8, reloadable=True)

    def __post_init__(self) -> None:
        if self.size > self.count:
            raise ConfigError(f"size={self.size} is above count={self.count}")


def parse(pairs: Mapping[str, str]) -> Example:
    return build_config(Example, pairs)


FORMAT = ConfigFormat(Example, parse, IGNORED)


class TestIgnored:
    def test_keys_without_effect_are_named_by_their_reasons(self) -> None:
        pairs = {"name": "x", "sendThreads": "9", "acl": "False", "pullThreads": "9"}
        rest, sentence = take_ignored(pairs, IGNORED)
        assert rest == {"name": "x"}
        assert sentence == (
            "keys of RocketMQ that have no effect here: acl (no access control); pullThreads, sendThreads (no threads)"
        )

    def test_nothing_is_said_without_such_keys(self) -> None:
        assert take_ignored({"name": "x"}, IGNORED) == ({"name": "x"}, "")

    def test_a_value_that_asks_for_what_is_not_done_is_rejected(self) -> None:
        with pytest.raises(ConfigError, match=r"^acl='true': no access control; allowed is false$"):
            take_ignored({"acl": "true"}, IGNORED)


class TestSource:
    def test_options_win_over_the_file_and_the_file_over_the_environment(self, tmp_path: Path) -> None:
        file = tmp_path / "x.conf"
        file.write_text("name=file\nport=2\n")
        environment = {"name": "environment", "port": "1", "size": "3"}
        source = ConfigSource(FORMAT, environment, file, {"port": "3"})
        assert source.read() == (Example(name="file", port=3, size=3), "")

    def test_the_older_spelling_gives_way_to_the_newer_one_of_a_later_place(self, tmp_path: Path) -> None:
        file = tmp_path / "x.conf"
        file.write_text("prot=2\n")
        assert ConfigSource(FORMAT, file=file).read()[0].port == 2
        assert ConfigSource(FORMAT, file=file, options={"port": "3"}).read()[0].port == 3
        file.write_text("prot=2\nport=2\n")
        with pytest.raises(ConfigError, match=r"x\.conf: prot is the older spelling of port"):
            ConfigSource(FORMAT, file=file).read()

    def test_an_unknown_key_is_rejected(self) -> None:
        with pytest.raises(ConfigError, match=r"did you mean name\?"):
            ConfigSource(FORMAT, options={"nome": "x"}).read()


@dataclass
class Running:
    """A process that follows its file."""

    file: Path
    applied: list[Example] = field(default_factory=list)

    def start(self, text: str) -> ReloadableConfig[Example]:
        self.file.write_text(text)
        source = ConfigSource(FORMAT, file=self.file)
        return ReloadableConfig(source, source.read()[0], self.applied.append)


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(tmp_path / "x.conf")


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[tuple[str, str]]]:
    caplog.set_level(logging.INFO)
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records]


class TestReload:
    def test_what_may_change_is_applied_and_in_force(
        self, running: Running, lines: Callable[[], list[tuple[str, str]]]
    ) -> None:
        in_force = running.start("size=4")
        running.file.write_text("size=5\ncount=9\n")
        in_force.reload()
        assert running.applied == [Example(size=5, count=9)]
        assert in_force.config == Example(size=5, count=9)
        assert lines() == [("INFO", f"{running.file} was read again: size=5 (was 4), count=9 (was 8)")]

    def test_what_may_not_change_keeps_its_value_and_is_named_in_one_warning(
        self, running: Running, lines: Callable[[], list[tuple[str, str]]]
    ) -> None:
        in_force = running.start("")
        running.file.write_text("name=b\nport=2\nsize=5\n")
        in_force.reload()
        assert in_force.config == Example(size=5)
        assert lines()[0] == (
            "WARNING",
            "only a restart changes these keys, which keep their values: name=a (not b), port=1 (not 2)",
        )
        running.file.write_text("")
        in_force.reload()
        assert in_force.config == Example()

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("size=5\ncount=x\n", "count='x' is not a whole number"),
            ("size=5\nnonsense\n", "line 2: 'nonsense' is not of the form key=value"),
            ("size=5\nnome=x\n", "unknown configuration key 'nome'"),
            ("size=9\n", "size=9 is above count=8"),
            ("size=5\nacl=true\n", "acl='true'"),
        ],
    )
    def test_a_bad_file_changes_nothing(
        self, running: Running, lines: Callable[[], list[tuple[str, str]]], text: str, sentence: str
    ) -> None:
        in_force = running.start("size=4")
        running.file.write_text(text)
        in_force.reload()
        assert (running.applied, in_force.config) == ([], Example(size=4))
        ((level, line),) = lines()
        assert level == "ERROR"
        assert sentence in line
        assert line.endswith("; the configuration stays as it was")

    def test_a_lost_file_changes_nothing(self, running: Running, lines: Callable[[], list[tuple[str, str]]]) -> None:
        in_force = running.start("size=4")
        running.file.unlink()
        in_force.reload()
        assert (running.applied, in_force.config) == ([], Example(size=4))
        assert "cannot be read" in lines()[0][1]

    def test_keys_without_effect_are_named_again(
        self, running: Running, lines: Callable[[], list[tuple[str, str]]]
    ) -> None:
        in_force = running.start("")
        running.file.write_text("sendThreads=1\n")
        in_force.reload()
        assert lines()[0] == ("WARNING", "keys of RocketMQ that have no effect here: sendThreads (no threads)")

    def test_without_a_file_there_is_nothing_to_read_again(self, lines: Callable[[], list[tuple[str, str]]]) -> None:
        applied: list[Example] = []
        ReloadableConfig(ConfigSource(FORMAT), Example(), applied.append).reload()
        assert applied == []
        assert lines()[0][0] == "WARNING"

    async def test_it_follows_each_time_it_is_asked(self, running: Running) -> None:
        running.file.write_text("")
        applied: asyncio.Queue[Example] = asyncio.Queue()
        asked = asyncio.Event()
        in_force = ReloadableConfig(ConfigSource(FORMAT, file=running.file), Example(), applied.put_nowait)
        following = asyncio.create_task(in_force.follow(asked))
        async with asyncio.timeout(5):
            for size in (5, 6):
                running.file.write_text(f"size={size}\n")
                asked.set()
                assert await applied.get() == Example(size=size)
        following.cancel()


@pytest.mark.parametrize(
    ("text", "pairs"),
    [
        ("brokerName=a", {"brokerName": "a"}),
        ("brokerName = a", {"brokerName": "a"}),
        ("\tbrokerName\t=\ta\t", {"brokerName": "a"}),
        ("brokerName: a", {"brokerName": "a"}),
        ("brokerName=", {"brokerName": ""}),
        ("a=x=y:z", {"a": "x=y:z"}),
        ("namesrvAddr=h:1;h:2", {"namesrvAddr": "h:1;h:2"}),
        ("# a=1\n! b=2\n  # c=3\n\n   \nd=4", {"d": "4"}),
        ("a=1 # no comment", {"a": "1 # no comment"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=h:1;\\\n   h:2;\\\r\n\th:3\nb=1", {"a": "h:1;h:2;h:3", "b": "1"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\n#2", {"a": "1#2"}),
        ("# comment \\\na=1", {"a": "1"}),
        ("a=1\\", {"a": "1"}),
        ("a=D:\\\\store\\\\\nb=1", {"a": "D:\\store\\", "b": "1"}),
        ("a=\\\\\\\n1", {"a": "\\1"}),
        ("a=\\=\\:\\#\\!x\\ y", {"a": "=:#!x y"}),
        ("a=x\\ty\\n\\r\\fz", {"a": "x\ty\n\r\fz"}),
        ("a=\\u00e9\\uD83D\\ude00", {"a": "é😀"}),
        ("a=é", {"a": "é"}),
    ],
)
def test_what_a_file_says(text: str, pairs: dict[str, str]) -> None:
    assert parse_properties(text, "x") == pairs


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("brokerName", "'brokerName' is not of the form key=value"),
        ("listenPort 10911", "'listenPort 10911' is not of the form key=value"),
        ("namesrvAddr h:9876", "'namesrvAddr h:9876' is not of the form key=value"),
        ("=1", "'=1' is not of the form key=value"),
        (" = ", "is not of the form key=value"),
        ("a=D:\\store", r"\s is no escape; a backslash itself is written as \\"),
        ("a=\\u12", r"\u is no escape"),
        ("a=\\ud83d", "half a character"),
    ],
)
def test_a_line_that_misleads_is_rejected_with_its_number(line: str, sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties(f"# comment\na=1;\\\n  2\n{line}\n", "broker.conf")
    assert str(caught.value).startswith("broker.conf, line 4: ")
    assert sentence in str(caught.value)


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9._]+", fullmatch=True), st.text().map(str.strip)))
def test_any_pairs_survive_the_way_through_a_file(pairs: dict[str, str]) -> None:
    assert parse_properties(format_properties(pairs), "x") == pairs


def test_a_command_line_is_taken_literally() -> None:
    arguments = ["listenPort=1", " storePathRootDir = C:\\store ", "messageDelayLevel=1s 2s", "a=b=c"]
    assert parse_assignments(arguments) == {
        "listenPort": "1",
        "storePathRootDir": "C:\\store",
        "messageDelayLevel": "1s 2s",
        "a": "b=c",
    }


@pytest.mark.parametrize("argument", ["listenPort", "=1", ""])
def test_an_argument_that_is_no_pair_is_rejected(argument: str) -> None:
    with pytest.raises(ConfigError, match=r"^command line: .* is not of the form key=value"):
        parse_assignments([argument])


def test_file_is_read_and_a_bad_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    with pytest.raises(ConfigError, match=r"broker\.conf cannot be read: .*No such file"):
        read_properties(file)
    file.write_bytes(b"name=\xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_properties(file)
    file.write_text("brokerName = broker-a\n")
    assert read_properties(file) == {"brokerName": "broker-a"}
    file.write_bytes(b"\xef\xbb\xbfbrokerName=b")  # with the mark that some editors begin a file with
    assert read_properties(file) == {"brokerName": "b"}
