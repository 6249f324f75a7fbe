"""The file format: what RocketMQ's files use is read as java.util.Properties reads it, and what misleads is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqproto.conf import ConfigError
from mqproto.config_source import format_properties, parse_assignments, parse_properties, read_properties


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
def test_a_line_that_misleads_is_refused_with_its_number(line: str, sentence: str) -> None:
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
def test_an_argument_that_is_no_pair_is_refused(argument: str) -> None:
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
