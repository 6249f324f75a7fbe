"""Addresses: host:port, and lists of them."""

from __future__ import annotations

import pytest

from mqproto.names import Address, parse_address, parse_address_list


def test_address_is_taken_apart_and_put_together() -> None:
    assert parse_address(" broker-a.local:10911 ") == Address("broker-a.local", 10911)
    assert str(Address("127.0.0.1", 9876)) == "127.0.0.1:9876"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            ":",
            "host",
            "host:",
            ":80",
            "host:0",
            "host:65536",
            "host:-1",
            "host:8x",
            "host:８０",
            "host:" + "9" * 5000,
        ),
        *("a b:80", "a:1 b:2", "a:1,b:2", "a:1;b:2", "http://host:80", "host: 80", "ho\nst:80"),
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address; write host:port with a port from 1 to 65535"):
        parse_address(text)


def test_list_is_separated_by_semicolons() -> None:
    assert parse_address_list("a:1;b:2; c:3 ;") == (Address("a", 1), Address("b", 2), Address("c", 3))


@pytest.mark.parametrize("text", ["", " ", ";", " ; "])
def test_empty_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="the list of addresses is empty"):
        parse_address_list(text)


@pytest.mark.parametrize("text", ["a:1,b:2", "a:1 b:2", "a:1;b"])
def test_list_with_a_wrong_separator_or_a_bad_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address"):
        parse_address_list(text)
