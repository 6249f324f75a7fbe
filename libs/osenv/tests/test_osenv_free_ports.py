"""Ports of the loopback interface that nobody else is given meanwhile."""

from __future__ import annotations

import importlib.util
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from osenv.free_ports import PORT_MAX, PORT_MIN, free_ports, turn_file

PROCESSES, EACH = 4, 200
DEAL = f"from osenv.free_ports import free_ports\nfor _ in range({EACH // 10}): print(*free_ports(10))"


@pytest.fixture(autouse=True)
def _own_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other tests of this machine deal at the same time."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield
    tempfile.tempdir = None


def test_they_are_different_and_outside_the_range_of_outgoing_connections() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(PORT_MIN <= port <= PORT_MAX < 32_768 for port in ports)


def test_no_two_processes_are_given_the_same_port() -> None:
    """Nobody listens at any of them, as in the seconds between the choice of a port and its server's start."""
    processes = [
        subprocess.Popen([sys.executable, "-c", DEAL], stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    ports = [int(port) for process in processes for port in process.communicate(timeout=60)[0].split()]
    assert len(ports) == PROCESSES * EACH
    assert len(set(ports)) == len(ports)


def test_a_port_comes_again_only_after_all_the_others() -> None:
    (first,) = free_ports(1)
    seen = [first, *(port for _ in range(20) for port in free_ports(500))]
    assert len(set(seen)) == len(seen)


def test_a_port_that_somebody_listens_at_is_passed_over() -> None:
    (first,) = free_ports(1)
    with socket.create_server(("127.0.0.1", first + 1 if first < PORT_MAX else PORT_MIN)) as taken:
        assert taken.getsockname()[1] not in free_ports(3)


def test_after_the_last_port_comes_the_first() -> None:
    turn_file().write_text(str(PORT_MAX - PORT_MIN))
    assert set(free_ports(2)) <= {PORT_MAX, *range(PORT_MIN, PORT_MIN + 100)}


@pytest.mark.parametrize("text", ["", "no number", "-1"])
def test_a_file_without_a_number_is_begun_anew(text: str) -> None:
    turn_file().write_text(text)
    assert len(free_ports(3)) == 3
    assert turn_file().read_text().isdigit()


def test_where_files_have_no_locks_ports_are_chosen_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert len(set(free_ports(20))) == 20
    assert not turn_file().exists()


def test_too_many_are_refused_with_what_was_found() -> None:
    with pytest.raises(OSError, match="1000 tries found only 1000 of 2000 free ports from 20000 to 32000"):
        free_ports(2_000)
