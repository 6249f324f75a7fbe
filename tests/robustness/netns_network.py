"""A small network for two brokers and their clients: three network namespaces of this machine and nothing else of it.

The namespace `client` has the name server, the producers and the consumers, and a bridge; from it a wire leads to each
of the namespaces `a` and `b`, which have a broker each. What the brokers tell each other passes the bridge. A broken
way is iptables' work, in the namespace of the one who no longer hears; a slow wire is tc's. Needs root, and the three
programs ip, tc and iptables.

Invariants: nothing in it reaches another network, nor does another one reach it; no namespace, and no process in one,
outlives the `with` block of `Network`; each is taken down by its own name or id.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

CLIENT, NODES = "client", ("a", "b")
HOSTS = {CLIENT: "10.97.0.1", "a": "10.97.0.2", "b": "10.97.0.3"}
BRIDGE, WIRE = "bridge", "wire"
TOOL_TIMEOUT_S = 30
END_TIMEOUT_S = 10.0
# A token bucket's: one packet with its head fits, and what waits longer than this is dropped, as on a real slow line.
BURST, QUEUED_MAX = "4kb", "500ms"
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])  # not every PATH has those


@dataclass(frozen=True, slots=True)
class Places:
    """The namespaces' names, for programs that run in one of them."""

    prefix: str

    def namespace(self, place: str) -> str:
        return f"{self.prefix}-{place}"

    def command(self, place: str) -> tuple[str, ...]:
        """What stands before a command that is to run there. The process stays the same one: `ip` becomes it."""
        return (_path_of("ip"), "netns", "exec", self.namespace(place))

    def run(self, place: str, *command: str) -> str:
        """Run a tool there; what it printed. Raises CalledProcessError with what it said."""
        return tool(*self.command(place), *command)


class Network:
    """A context manager: inside, the namespaces are there and connected."""

    def __init__(self) -> None:
        self.places = Places(f"hourglass-{os.getpid()}-{secrets.token_hex(3)}")
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            for place in HOSTS:
                tool("ip", "netns", "add", self.places.namespace(place))
                self._made.append(place)
            self._connect()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _connect(self) -> None:
        client = self.places.namespace(CLIENT)
        tool("ip", "-n", client, "link", "add", BRIDGE, "type", "bridge")
        for node in NODES:
            other = self.places.namespace(node)
            end = _end_at_bridge(node)
            tool("ip", "-n", client, "link", "add", end, "type", "veth", "peer", "name", WIRE, "netns", other)
            tool("ip", "-n", client, "link", "set", end, "master", BRIDGE, "up")
        for place, host in HOSTS.items():
            namespace, device = self.places.namespace(place), BRIDGE if place == CLIENT else WIRE
            tool("ip", "-n", namespace, "address", "add", f"{host}/24", "dev", device)
            for one in ("lo", device):
                tool("ip", "-n", namespace, "link", "set", one, "up")

    def _remove(self) -> None:
        while self._made:
            namespace = self.places.namespace(self._made.pop())
            _end_processes(namespace)
            tool("ip", "netns", "delete", namespace)


class Faults:
    """What is broken in the network at the moment."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._rules: list[tuple[str, tuple[str, ...]]] = []
        self._slow: set[str] = set()

    def silence(self, speaker: str, listener: str, *, from_port: int | None = None, to_port: int | None = None) -> None:
        """From now on `listener` hears nothing that `speaker` says, or nothing from or to this port."""
        ports = {"--source-port": from_port, "--destination-port": to_port}
        named = [word for name, port in ports.items() if port is not None for word in (name, str(port))]
        filters = ["--protocol", "tcp", *named] if named else []
        rule = ("INPUT", "--source", HOSTS[speaker], *filters, "--jump", "DROP")
        self._places.run(listener, "iptables", "--wait", "--append", *rule)
        self._rules.append((listener, rule))

    def cut(self, one: str, other: str) -> None:
        """Neither hears the other."""
        self.silence(one, other)
        self.silence(other, one)

    def slow_down(self, node: str, rate: str) -> None:
        """What is said to the node reaches it at this rate, which is written as tc wants it."""
        bucket = ("tbf", "rate", rate, "burst", BURST, "latency", QUEUED_MAX)
        self._places.run(CLIENT, "tc", "qdisc", "replace", "dev", _end_at_bridge(node), "root", *bucket)
        self._slow.add(node)

    def heal(self) -> int:
        """Mend everything; how many packets were stopped or held up until now."""
        met = 0
        for place in {listener for listener, _ in self._rules}:
            counters = self._places.run(place, "iptables", "--wait", "--list", "INPUT", "--verbose", "--numeric", "-x")
            met += sum(int(count) for count in re.findall(r"^\s*(\d+)\s+\d+\s+DROP\b", counters, re.MULTILINE))
        while self._rules:
            listener, rule = self._rules[-1]
            self._places.run(listener, "iptables", "--wait", "--delete", *rule)
            self._rules.pop()
        for node in sorted(self._slow):
            counters = self._places.run(CLIENT, "tc", "-s", "qdisc", "show", "dev", _end_at_bridge(node))
            met += sum(int(count) for count in re.findall(r"\boverlimits (\d+)", counters))
            self._places.run(CLIENT, "tc", "qdisc", "delete", "dev", _end_at_bridge(node), "root")
            self._slow.discard(node)
        return met


def _end_at_bridge(node: str) -> str:
    """The other end of the node's wire."""
    return f"to-{node}"


def _end_processes(namespace: str) -> None:
    """End whatever still runs there. Raises TimeoutError when something does not end."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while pids := [int(pid) for pid in tool("ip", "netns", "pids", namespace).split()]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {pids} of the namespace {namespace} do not end")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _path_of(program: str) -> str:
    found = shutil.which(program, path=SEARCH_PATH)
    if found is None:
        raise FileNotFoundError(f"{program} is not installed")
    return found


def tool(*command: str) -> str:
    """Run it; what it printed. Raises CalledProcessError with what it said."""
    environment = os.environ | {"PATH": SEARCH_PATH, "LC_ALL": "C"}
    try:
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=TOOL_TIMEOUT_S, check=True, env=environment
        )
    except subprocess.CalledProcessError as error:
        error.add_note(error.stderr)
        raise
    return run.stdout
