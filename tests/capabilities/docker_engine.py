"""A Docker engine for tests: the one that runs, or one of our own that ends with them.

Invariants: an engine that was here before is left as it is; of one that we start, no process, network interface or
packet filter rule stays. Its images do, in a cache folder, so that the next run need not make them again.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_TIMEOUT_S, STOP_TIMEOUT_S, ASK_TIMEOUT_S = 60.0, 60.0, 20.0
SYSTEM_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
BRIDGE = "docker0"
IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


class NoEngineError(RuntimeError):
    """No engine runs, and none can be started; the message says why."""


def cache_folder() -> Path:
    """Where images of engines that tests start are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hourglass" / "docker"


def answers(host: str | None) -> bool:
    """Whether an engine answers at `host`, None being where the command `docker` looks by itself."""
    environment = os.environ | ({} if host is None else {"DOCKER_HOST": host})
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        run = subprocess.run(command, env=environment, capture_output=True, timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return run.returncode == 0


@contextmanager
def engine(data: Path | None = None) -> Iterator[dict[str, str]]:
    """The environment with which `docker` talks to the engine. `data` is where a new one keeps its images.

    Raises NoEngineError.
    """
    if answers(None):
        yield dict(os.environ)
        return
    if os.geteuid() != 0:
        raise NoEngineError("no Docker engine runs, and only root may start one")
    with (
        tempfile.TemporaryDirectory(prefix="hourglass-docker-") as folder,
        _network_as_it_was(),
        _started(Path(folder), data or Path(folder, "data")) as host,
    ):
        yield os.environ | {"DOCKER_HOST": host}


@contextmanager
def _started(folder: Path, data: Path) -> Iterator[str]:
    data.mkdir(parents=True, exist_ok=True)
    (folder / "daemon.json").write_text("{}")
    host, log = f"unix://{folder}/socket", folder / "log"
    command = ["dockerd", "--config-file", "daemon.json", "--data-root", str(data), "--exec-root", str(folder / "exec")]
    command += ["--pidfile", str(folder / "pid"), "--host", host]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=os.environ | {"PATH": SYSTEM_PATH}, stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers(host):
            if process.poll() is not None or time.monotonic() > deadline:
                lines = log.read_text(errors="replace").splitlines() or ["it says nothing"]
                raise NoEngineError(f"dockerd did not start: {lines[-1]}")
            time.sleep(0.2)
        yield host
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        for path in (folder / "exec").rglob("netns/*"):  # a build in the host's network leaves one mounted
            _tool("umount", str(path))


@contextmanager
def _network_as_it_was() -> Iterator[None]:
    """An engine leaves its bridge and its rules behind, and drops what others forward."""
    interfaces, forwarding, rules = _interfaces(), IP_FORWARD.read_text(), _tool("iptables-save")
    try:
        yield
    finally:
        if BRIDGE not in interfaces and BRIDGE in _interfaces():
            _tool("ip", "link", "delete", BRIDGE)
        _tool("iptables-restore", stdin=rules + tables_since(rules, _tool("iptables-save")))
        IP_FORWARD.write_text(forwarding)


def tables_since(before: str, now: str) -> str:
    """What empties the tables that there are now, and were not before: to restore nothing changes nothing.

    Texts of iptables-save. A chain with a policy is the kernel's own; all others go with their rules.
    """
    kept = [line for line in now.splitlines() if re.match(r"\*|:\S+ (?!-)|COMMIT", line)]
    tables = re.findall(r"^\*.*?^COMMIT$", "\n".join(kept), re.MULTILINE | re.DOTALL)
    new = [table for table in tables if table.partition("\n")[0] not in before.splitlines()]
    return "".join(re.sub(r"^(:\S+) \S+", r"\1 ACCEPT", table, flags=re.MULTILINE) + "\n" for table in new)


def _interfaces() -> set[str]:
    return {one["ifname"] for one in json.loads(_tool("ip", "-json", "link"))}


def _tool(*command: str, stdin: str = "") -> str:
    """What it prints. Raises NoEngineError."""
    path = shutil.which(command[0], path=SYSTEM_PATH)
    if path is None:
        raise NoEngineError(f"not installed: {command[0]}")
    run = subprocess.run([path, *command[1:]], input=stdin, capture_output=True, text=True, timeout=30, check=False)
    if run.returncode:
        raise NoEngineError(f"{' '.join(command)} failed: {run.stderr.strip()}")
    return run.stdout
