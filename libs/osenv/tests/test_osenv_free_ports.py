"""Ports of the loopback interface that nobody else is given meanwhile."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import osenv.network
from osenv.network import PORT_MAX, PORT_MIN, free_ports, turn_file

PROCESSES, EACH = 4, 200
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
    """Nobody listens at any of them, as in the seconds between the choice of a port and its server's start."""
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
def test_a_port_that_somebody_listens_at_is_passed_over() -> None:
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
def test_too_many_are_refused_with_what_was_found() -> None:
    with pytest.raises(OSError, match="1000 tries found only 1000 of 2000 free ports from 20000 to 32000"):
        free_ports(2_000)
