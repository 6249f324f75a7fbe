"""Figure G7: real failures of a pair, in network namespaces (netns_rounds.py);
and the faults in the network are real.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import netns_rounds
import pytest
from netns_faults import ROUNDS_FOR_ALL, Fault
from netns_history import SEND_OK
from netns_network import CLIENT, HOSTS, NODES, Faults, Network, tool
from netns_rounds import play

from mqclient import SendStatus

pytestmark = [pytest.mark.needs("network-namespaces"), pytest.mark.processes, pytest.mark.timeout(300)]

CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], 9), timeout=0.5)"
ACKNOWLEDGED_MIN = 500
COUNTS: dict[int, dict[str, int]] = {}  # by seed, of the rounds that have been played


@pytest.mark.mechanism("H6")
@pytest.mark.parametrize("seed", range(1, ROUNDS_FOR_ALL + 1))
def test_a_pair_keeps_what_it_has_acknowledged_whatever_happens(
    seed: int, record_property: Callable[[str, object], None]
) -> None:
    outcome = play(seed)
    assert outcome.violations == (), f"again: .venv/bin/python tests/robustness/runner.py --replay replication {seed}"
    assert outcome.executed == 1
    assert outcome.counts[f"sent: {SEND_OK}"] >= ACKNOWLEDGED_MIN
    assert outcome.counts["consumed"] >= outcome.counts[f"sent: {SEND_OK}"]
    COUNTS[seed] = dict(outcome.counts)
    figures = ", ".join(f"{count} {name}" for name, count in sorted(outcome.counts.items()))
    record_property("figure", f"G7 round {seed}: {figures}")


def test_the_rounds_together_have_met_every_fault_and_every_answer() -> None:
    """After the rounds, in this order, in one process (--dist loadfile)."""
    if len(COUNTS) < ROUNDS_FOR_ALL:
        pytest.skip("needs all rounds to have passed")
    met = {name for counts in COUNTS.values() for name, count in counts.items() if count}
    assert {fault.value for fault in Fault} <= met
    assert {f"sent: {SendStatus.SEND_OK.value}", f"sent: {SendStatus.SLAVE_NOT_AVAILABLE.value}"} <= met


def test_a_round_that_comes_to_no_end_is_a_violation_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(netns_rounds, "ROUND_MAX_S", 1.0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    outcome = play(1)
    assert outcome.executed == 0
    assert "the round came to no end" in outcome.violations[0]
    (folder,) = tmp_path.iterdir()
    assert str(folder) in outcome.violations[-1]
    assert f"hourglass-{os.getpid()}-" not in tool("ip", "netns", "list")


def can_connect(network: Network, place: str, to: str) -> bool:
    """Whether packets go there and back: nothing listens, and to hear that is an answer."""
    command = [*network.places.command(place), sys.executable, "-c", CONNECT, HOSTS[to]]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert "Refused" in run.stderr or "timed out" in run.stderr, run.stderr
    return "Refused" in run.stderr


def test_all_namespaces_reach_each_other_and_nothing_is_left_of_the_network() -> None:
    with Network() as network:
        namespaces = [network.places.namespace(place) for place in (CLIENT, *NODES)]
        assert all(can_connect(network, one, other) for one in HOSTS for other in HOSTS if one != other)
        sleeper = subprocess.Popen([*network.places.command("a"), "sleep", "600"])
        assert set(namespaces) <= set(tool("ip", "netns", "list").replace("(", " ").split())
    assert sleeper.wait(10) != 0
    assert not set(namespaces) & set(tool("ip", "netns", "list").replace("(", " ").split())


def test_a_network_that_cannot_be_made_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    monkeypatch.setitem(HOSTS, "b", "no address")
    with pytest.raises(subprocess.CalledProcessError), network:
        pytest.fail("it was made")
    assert network.places.prefix not in tool("ip", "netns", "list")


def test_a_silenced_namespace_is_not_heard_until_it_is_healed() -> None:
    with Network() as network:
        faults = Faults(network.places)
        faults.silence("a", "b")
        assert not can_connect(network, "a", "b")
        assert can_connect(network, "a", CLIENT)
        assert faults.heal() > 0
        assert can_connect(network, "a", "b")
        faults.silence(CLIENT, "a", to_port=9)
        assert not can_connect(network, CLIENT, "a")
        assert can_connect(network, "b", "a")
        assert faults.heal() > 0
        assert faults.heal() == 0


def test_a_slow_wire_holds_packets_up() -> None:
    sending = f"[sender.sendto(bytes(1_000), ('{HOSTS['b']}', 9)) for _ in range(20)]"
    script = f"import socket; sender = socket.socket(type=socket.SOCK_DGRAM); {sending}"
    with Network() as network:
        faults = Faults(network.places)
        faults.slow_down("b", "100kbit")
        assert "tbf" in network.places.run(CLIENT, "tc", "qdisc")
        network.places.run("a", sys.executable, "-c", script)
        assert faults.heal() > 0
        assert "tbf" not in network.places.run(CLIENT, "tc", "qdisc")
