"""The machine's own address, connections that are broken by the name of their peer, ports that no other process is
given."""

from __future__ import annotations

import importlib.util
import ipaddress
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import osenv.network
from osenv.network import PORT_MAX, PORT_MIN, break_connections, free_ports, own_ipv4, turn_file

PROCESSES, EACH = 4, 200


def test_it_is_an_address_of_this_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((own_ipv4(), 0))  # only an address of this machine can be bound


def test_a_machine_without_a_route_has_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
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
    def reject(*_: object) -> socket.socket:
        raise OSError("Address family not supported by protocol")

    monkeypatch.setattr(socket, "socket", reject)
    assert ipaddress.ip_address(own_ipv4()).is_loopback


def test_the_connections_to_these_peers_are_shut_down_and_no_others() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        clients = [socket.create_connection(server.getsockname()) for _ in range(2)]
        served = [server.accept()[0] for _ in clients]
        host, port = clients[0].getsockname()
        assert break_connections([f"ipv4:{host}:{port}", "ipv4:192.0.2.1:9", "memory"]) == 1
        assert clients[0].recv(1) == b""
        served[1].sendall(b"x")
        assert clients[1].recv(1) == b"x"
        for one in (*clients, *served):
            one.close()


DEAL = f"from osenv.network import free_ports\nfor _ in range({EACH // 10}): print(*free_ports(10))"


@pytest.fixture
def own_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Other tests of this machine deal at the same time."""
    monkeypatch.setattr(osenv.network, "TURN_FOLDER", tmp_path)
    return turn_file()


def test_they_are_different_and_outside_the_range_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(PORT_MIN <= port <= PORT_MAX < 32_768 for port in ports)


def test_no_two_processes_are_given_the_same_port(tmp_path: Path) -> None:
    """No server listens at any of them yet, as in the seconds between the choice of a port and its server's start."""
    processes = []
    for number in range(PROCESSES):
        (own := tmp_path / str(number)).mkdir()
        environment = os.environ | {"TMPDIR": str(own)}
        processes.append(
            subprocess.Popen([sys.executable, "-c", DEAL], stdout=subprocess.PIPE, text=True, env=environment)
        )
    ports = [int(port) for process in processes for port in process.communicate(timeout=60)[0].split()]
    assert len(ports) == PROCESSES * EACH
    assert len(set(ports)) == len(ports)
    assert not any(any(own.iterdir()) for own in tmp_path.iterdir())


@pytest.mark.usefixtures("own_turn")
def test_a_port_comes_again_only_after_all_the_others() -> None:
    (first,) = free_ports(1)
    seen = [first, *(port for _ in range(20) for port in free_ports(500))]
    assert len(set(seen)) == len(seen)


@pytest.mark.usefixtures("own_turn")
def test_a_port_in_use_is_passed_over() -> None:
    (first,) = free_ports(1)
    with socket.create_server(("127.0.0.1", first + 1 if first < PORT_MAX else PORT_MIN)) as taken:
        assert taken.getsockname()[1] not in free_ports(3)


def test_after_the_last_port_comes_the_first(own_turn: Path) -> None:
    own_turn.write_text(str(PORT_MAX - PORT_MIN))
    assert set(free_ports(2)) <= {PORT_MAX, *range(PORT_MIN, PORT_MIN + 100)}


@pytest.mark.parametrize("text", ["", "no number", "-1"])
def test_a_file_without_a_number_is_begun_anew(own_turn: Path, text: str) -> None:
    own_turn.write_text(text)
    assert len(free_ports(3)) == 3
    assert own_turn.read_text().isdigit()


def test_where_files_have_no_locks_ports_are_chosen_at_random(own_turn: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert len(set(free_ports(20))) == 20
    assert not own_turn.exists()


@pytest.mark.usefixtures("own_turn")
def test_too_many_are_rejected_with_what_was_found() -> None:
    with pytest.raises(OSError, match="1000 tries found only 1000 of 2000 free ports from 20000 to 32000"):
        free_ports(2_000)
