"""What some tests need beyond pip packages, and how this machine is asked whether it has it.

Invariants: a probe changes nothing that outlives it; it returns None when the capability is there, else an `Absence`
with a reason for people; only a capability that depends on what cannot be installed, such as the kernel, may be missing
for good.
"""

from __future__ import annotations

import functools
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from docker_engine import NoEngineError, engine

ROOT = Path(__file__).parents[2]
JAVA_VERSION_MIN = 17
PROMTOOL_VERSION_MIN = (2, 42)
CHROMIUM_NAMES = ("chromium", "chromium-browser")
PROBE_TIMEOUT_S = 60
IMAGE_BYTES = 8 * 1024 * 1024  # ext4 needs about 2 MiB
# apt puts them there; the PATH of a non-login shell may not have it.
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")


@dataclass(frozen=True, slots=True)
class Absence:
    """Why a capability is missing. `for_good`: nothing that could be installed would change it."""

    reason: str
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class Capability:
    """`packages` are Debian's names of what has to be installed; root can, with apt."""

    name: str
    packages: tuple[str, ...]
    may_lack_for_good: bool
    probe: Callable[[], Absence | None]


@functools.cache
def absence(name: str) -> Absence | None:
    """What `name` lacks here, or None; asked once in a process. Raises KeyError for an unknown name."""
    capability = CAPABILITIES[name]
    missing = capability.probe()
    if missing is not None and missing.for_good and not capability.may_lack_for_good:
        raise AssertionError(f"{name} can be installed, and its probe says {missing}")
    return missing


def which(tool: str) -> str | None:
    """The path of a program, also where only root's PATH looks."""
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", os.defpath), *SYSTEM_FOLDERS]))


def _old_java(tool: str) -> Absence | None:
    run = _run([tool, "-version"])
    match = re.search(r'(?:version "|javac )(\d+)', run.stdout + run.stderr)
    if match is None or int(match[1]) < JAVA_VERSION_MIN:
        first_line = (run.stderr + run.stdout).partition("\n")[0]
        return Absence(f"{tool} has to be Java {JAVA_VERSION_MIN} or newer, and says: {first_line}")
    return None


def _missing_tools(*tools: str) -> Absence | None:
    missing = [tool for tool in tools if which(tool) is None]
    return Absence(f"not installed: {', '.join(missing)}") if missing else None


def probe_maven() -> Absence | None:
    """Maven with a compiler of Java 17 or newer."""
    if missing := _missing_tools("mvn", "java", "javac"):
        return missing
    return _old_java("java") or _old_java("javac")


def probe_java() -> Absence | None:
    """Java 17 or newer, for Spark, which comes by pip without it."""
    return _missing_tools("java") or _old_java("java")


def probe_loop_device() -> Absence | None:
    """An ext4 file system in a file, attached, mounted, written to, and taken down again."""
    if missing := _missing_tools("losetup", "mkfs.ext4", "mount", "umount"):
        return missing
    if os.geteuid() != 0:
        return Absence("only root may mount", for_good=True)
    with tempfile.TemporaryDirectory(prefix="hourglass-probe-") as folder:
        image, target = Path(folder, "image"), Path(folder, "mounted")
        image.touch()
        os.truncate(image, IMAGE_BYTES)
        target.mkdir()
        made = _run(["mkfs.ext4", "-q", "-F", str(image)])
        if made.returncode:
            return Absence(f"mkfs.ext4 failed: {made.stderr.strip()}")
        attached = _run(["losetup", "--find", "--show", str(image)])
        if attached.returncode:
            return Absence(f"losetup failed: {attached.stderr.strip()}", for_good=True)
        device = attached.stdout.strip()
        try:
            mounted = _run(["mount", "-t", "ext4", device, str(target)])
            if mounted.returncode:
                return Absence(f"mount failed: {mounted.stderr.strip()}", for_good=True)
            try:
                (target / "file").write_bytes(b"written")
            finally:
                _run(["umount", str(target)])
        finally:
            _run(["losetup", "--detach", device])
    return None


def probe_network_namespaces() -> Absence | None:
    """A namespace with a wire, on which a rule drops packets and a queue slows them down; taken down again."""
    if missing := _missing_tools("ip", "tc", "iptables"):
        return missing
    if os.geteuid() != 0:
        return Absence("only root may make network namespaces", for_good=True)
    name = f"hourglass-probe-{os.getpid()}-{secrets.token_hex(3)}"
    made = _run(["ip", "netns", "add", name])
    if made.returncode:
        return Absence(f"ip netns add failed: {made.stderr.strip()}", for_good=True)
    try:
        for text in (
            f"ip -n {name} link add bridge type bridge",
            f"ip -n {name} link add wire type veth peer name other",
            f"ip netns exec {name} iptables --wait --append INPUT --protocol tcp --source-port 1 --jump DROP",
            f"ip netns exec {name} tc qdisc add dev wire root tbf rate 1mbit burst 4kb latency 1s",
        ):
            run = _run(text.split())
            if run.returncode:
                return Absence(f"{text} failed: {run.stderr.strip()}", for_good=True)
    finally:
        _run(["ip", "netns", "delete", name])
    return None


def probe_postgresql() -> Absence | None:
    """PostgreSQL 15 or newer, and for root a user who runs it."""
    from servicekit.testing.postgresql import NoPostgresError, programs_folder

    try:
        programs_folder()
    except NoPostgresError as error:
        return Absence(str(error))
    return None


def probe_chromium() -> Absence | None:
    """Chromium that starts, and a font with Chinese characters."""
    if all(which(name) is None for name in CHROMIUM_NAMES):
        return Absence("not installed: chromium")
    if missing := _missing_tools("fc-list"):
        return missing
    name = next(name for name in CHROMIUM_NAMES if which(name))
    started = _run([name, "--version"])
    if started.returncode:
        return Absence(f"{name} --version failed: {started.stderr.strip()}")
    if not _run(["fc-list", ":lang=zh"]).stdout.strip():
        return Absence("not installed: a font with Chinese characters")
    return None


def probe_promtool() -> Absence | None:
    """promtool of Prometheus 2.42 or newer, the oldest that its tests have run with."""
    if missing := _missing_tools("promtool"):
        return missing
    run = _run(["promtool", "--version"])
    match = re.search(r"version (\d+)\.(\d+)", run.stdout + run.stderr)
    if match is None or (int(match[1]), int(match[2])) < PROMTOOL_VERSION_MIN:
        first_line = (run.stdout + run.stderr).partition("\n")[0]
        return Absence(f"promtool has to be of Prometheus 2.42 or newer, and says: {first_line}")
    return None


def probe_docker() -> Absence | None:
    """A Docker engine, Compose, and what makes base images where none can be pulled: debootstrap and Go."""
    if missing := _missing_tools("docker", "dockerd", "docker-compose", "debootstrap", "go", "iptables", "ip"):
        return missing
    try:
        with engine():
            return None
    except NoEngineError as error:
        return Absence(str(error), for_good=True)


def probe_nginx() -> Absence | None:
    """nginx, and openssl to make a certificate for it."""
    return _missing_tools("nginx", "openssl")


def probe_package_index() -> Absence | None:
    """Packages can be fetched, from wherever pip takes them on this machine: one small pure one is."""
    with tempfile.TemporaryDirectory(prefix="hourglass-probe-") as folder:
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, "h11"]
        run = _run([*fetch, "--retries", "0"])
        if run.returncode:
            return Absence(f"pip download failed: {run.stderr.strip().splitlines()[-1]}", for_good=True)
    return None


def probe_history() -> Absence | None:
    """The commits before this one, for tests that run earlier code."""
    if missing := _missing_tools("git"):
        return missing
    asked = _run(["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"])
    if asked.returncode:
        return Absence(f"git rev-parse failed: {asked.stderr.strip()}", for_good=True)
    if asked.stdout.strip() != "false":
        return Absence("this is a shallow clone; git fetch --unshallow completes it", for_good=True)
    return None


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    path = which(command[0]) or command[0]
    return subprocess.run(
        [path, *command[1:]], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False, env=_english()
    )


def _english() -> dict[str, str]:
    return os.environ | {"LC_ALL": "C"}


CAPABILITIES = {
    capability.name: capability
    for capability in (
        Capability("java", ("default-jdk-headless",), may_lack_for_good=False, probe=probe_java),
        Capability("maven", ("maven", "default-jdk-headless"), may_lack_for_good=False, probe=probe_maven),
        Capability(
            "loop device", ("e2fsprogs", "util-linux", "mount"), may_lack_for_good=True, probe=probe_loop_device
        ),
        Capability(
            "network-namespaces", ("iproute2", "iptables"), may_lack_for_good=True, probe=probe_network_namespaces
        ),
        Capability("postgresql", ("postgresql",), may_lack_for_good=False, probe=probe_postgresql),
        Capability("promtool", ("prometheus",), may_lack_for_good=False, probe=probe_promtool),
        Capability(
            "docker", ("docker.io", "docker-compose", "debootstrap"), may_lack_for_good=True, probe=probe_docker
        ),
        Capability("nginx", ("nginx", "openssl"), may_lack_for_good=False, probe=probe_nginx),
        Capability("package index", (), may_lack_for_good=True, probe=probe_package_index),
        Capability("history", ("git",), may_lack_for_good=True, probe=probe_history),
        Capability("chromium", ("chromium", "fonts-noto-cjk"), may_lack_for_good=False, probe=probe_chromium),
    )
}
