"""The machine's own address."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from osenv.network import own_ipv4


def test_it_is_an_address_of_this_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((own_ipv4(), 0))  # nobody else's can be listened on


def test_a_machine_that_reaches_nobody_has_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unreachable(socket.socket):
        def connect(self, _: object) -> None:
            raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "socket", Unreachable)
    assert ipaddress.ip_address(own_ipv4()).is_loopback


def test_a_machine_that_gives_no_address_for_its_route_has_the_loopback_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Nameless(socket.socket):
        def getsockname(self) -> tuple[str, int]:
            return "0.0.0.0", 40_000

    monkeypatch.setattr(socket, "socket", Nameless)
    assert ipaddress.ip_address(own_ipv4()).is_loopback


def test_a_machine_without_ipv4_has_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> socket.socket:
        raise OSError("Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", refuse)
    assert ipaddress.ip_address(own_ipv4()).is_loopback
