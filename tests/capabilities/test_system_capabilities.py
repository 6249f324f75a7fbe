"""What the probes promise is really there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from capabilities import probe_docker, probe_loop_device, probe_network_namespaces, which


@pytest.mark.needs("maven")
def test_maven_runs_and_names_its_java() -> None:
    run = subprocess.run(["mvn", "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert "Java version: " in run.stdout


@pytest.mark.needs("loop device")
def test_the_probe_of_loop_devices_leaves_none_behind() -> None:
    def attached() -> list[str]:
        command = [which("losetup") or "losetup", "--list", "--noheadings", "--output", "BACK-FILE"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        return [line for line in run.stdout.splitlines() if "hourglass-probe-" in line]

    assert probe_loop_device() is None
    assert attached() == []
    assert not any("hourglass-probe-" in line for line in Path("/proc/mounts").read_text().splitlines())


@pytest.mark.needs("network-namespaces")
def test_the_probe_of_network_namespaces_leaves_none_behind() -> None:
    assert probe_network_namespaces() is None
    command = [which("ip") or "ip", "netns", "list"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert f"hourglass-probe-{os.getpid()}" not in run.stdout


@pytest.mark.needs("docker")
def test_the_probe_of_docker_leaves_neither_bridge_nor_rules_nor_processes() -> None:
    def state() -> tuple[str, str, int]:
        links = subprocess.run([which("ip") or "ip", "-brief", "link"], capture_output=True, text=True, check=True)
        rules = subprocess.run([which("iptables-save") or "", "-t", "nat"], capture_output=True, text=True, check=True)
        lines = [line for line in rules.stdout.splitlines() if not line.startswith(("#", ":"))]
        engines = sum(path.read_text().strip() == "dockerd" for path in _names_of_processes())
        return links.stdout, "\n".join(lines), engines

    before = state()
    assert probe_docker() is None
    assert state() == before


# What an engine does to the packet filter, and what is left of it: rules, chains, and policies other than ACCEPT.
LIKE_AN_ENGINE = """
import sys
import docker_engine as docker

def told():
    lines = docker._tool("iptables-save").splitlines()
    return [line for line in lines if line[:1] in ":-" and " ACCEPT" not in line]

for rule in sys.argv[1:]:
    docker._tool("iptables", *rule.split())
before = told()
with docker._network_as_it_was():
    for rule in ("-P FORWARD DROP", "-N DOCKER", "-A FORWARD -j DOCKER", "-t nat -N DOCKER"):
        docker._tool("iptables", *rule.split())
    assert len(told()) == len(before) + 4
assert told() == before, told()
"""


@pytest.mark.needs("network-namespaces")
@pytest.mark.parametrize("rules", [(), ("-A INPUT -p tcp --sport 1 -j DROP",)], ids=["no table", "a rule"])
def test_an_engine_of_our_own_leaves_the_packet_filter_as_it_was(rules: tuple[str, ...]) -> None:
    """In a network namespace, which begins without any table, as a fresh machine does."""
    command = [which("unshare") or "unshare", "--net", sys.executable, "-c", LIKE_AN_ENGINE, *rules]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr


def _names_of_processes() -> list[Path]:
    return [path for path in Path("/proc").glob("[0-9]*/comm") if path.exists()]
