"""What the containers' rules are, held against what `docker inspect` says of each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from compose_stack import ONE_SHOT

UID_MIN = 10_000
PIDS_MAX, MEMORY_BYTES_MAX, NANO_CPUS_MAX = 512, 1 << 30, 2 * 10**9
TMPFS_OPTIONS = {"noexec", "nosuid"}
SECRETS_FOLDER = "/run/hourglass"
# Of /proc/<pid>/status, which is the kernel's word: no capability, nothing gained by an exec, system calls filtered.
STATUS_OF_ALL = {"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}


def violations(service: str, container: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each rule that the container breaks."""
    config, host = container["Config"], container["HostConfig"]
    uid = config["User"].partition(":")[0]
    rules = {
        f"it runs as {config['User']!r}": uid.isdigit() and int(uid) >= UID_MIN,
        "its file system can be written": host["ReadonlyRootfs"],
        "it has capabilities": host["CapDrop"] == ["ALL"] and not host["CapAdd"] and not host["Privileged"],
        "it may gain privileges": "no-new-privileges:true" in host["SecurityOpt"],
        "its processes are not limited": 0 < (host["PidsLimit"] or 0) <= PIDS_MAX,
        "its memory is not limited": 0 < host["Memory"] <= MEMORY_BYTES_MAX,
        "its processor time is not limited": 0 < host["NanoCpus"] <= NANO_CPUS_MAX,
        "it shares a namespace of the host": "host" not in (host["NetworkMode"], host["PidMode"], host["IpcMode"]),
        "it has no health check": service == ONE_SHOT or bool(config.get("Healthcheck", {}).get("Test")),
        "it has no folder for temporary files": "/tmp" in (host["Tmpfs"] or {}),
    }
    yield from (f"{service}: {sentence}" for sentence, is_kept in rules.items() if not is_kept)
    for folder, options in (host["Tmpfs"] or {}).items():
        if not set(options.split(",")) >= TMPFS_OPTIONS:
            yield f"{service}: programs can be put into {folder} ({options})"
    yield from _of_mounts(service, container["Mounts"])
    for port, bindings in (host["PortBindings"] or {}).items():
        if any(one["HostIp"] != "127.0.0.1" for one in bindings):
            yield f"{service}: port {port} is open to other machines"


def _of_mounts(service: str, mounts: list[Mapping[str, Any]]) -> Iterator[str]:
    for mount in mounts:
        if mount["Type"] not in ("bind", "volume"):
            yield f"{service}: {mount['Destination']} is a mount of type {mount['Type']}"
        if mount["Type"] == "bind" and mount["RW"]:
            yield f"{service}: it can write into the host's {mount['Source']}"
        if mount["Destination"] == SECRETS_FOLDER and mount["RW"]:
            yield f"{service}: it can change its secrets"
        if "docker" in Path(mount["Source"]).name and mount["Source"].endswith("sock"):
            yield f"{service}: it commands the engine"


def kernel_violations(service: str, pid: int) -> Iterator[str]:
    """The same of its first process, by the kernel of this machine."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    for name, wanted in STATUS_OF_ALL.items():
        if status[name] != [wanted]:
            yield f"{service}: {name} is {status[name]}, not {wanted}"
    if min(map(int, status["Uid"])) < UID_MIN or min(map(int, status["Gid"])) < UID_MIN:
        yield f"{service}: Uid {status['Uid']}, Gid {status['Gid']}"
