"""Evidence of a run: what the numbers depend on (the machine, the versions, the state of the code), and its file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from hourglass_local.process import MIB

SYNCS, SYNC_BYTES = 101, 4_096
DIGITS = 6


def describe_run(root: Path | None = None) -> dict[str, Any]:
    """The head of the results of a run: the time, the code in `root` (this folder) and the machine, as they are now."""
    time_now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"time": time_now, **describe_code(root or Path.cwd()), "machine": describe_machine()}


def write_evidence(path: Path, document: Mapping[str, Any], console: Console) -> None:
    """Replace the file, with DIGITS behind the points of numbers, and say where it is. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(_short(dict(document)), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print(f"Written to {path}.", highlight=False, soft_wrap=True)


def _short(value: Any) -> Any:
    match value:
        case dict():
            return {name: _short(member) for name, member in value.items()}
        case list() | tuple():
            return [_short(member) for member in value]
        case float():
            return round(value, DIGITS)
        case _:
            return value


def describe_machine() -> dict[str, Any]:
    """For the head of the results."""
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(),
        "ram_mib": round(psutil.virtual_memory().total / MIB),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("grpcio", "uvloop", "protobuf")},
        "store_folder": tempfile.gettempdir(),
        "fdatasync_ms": round(_fdatasync_ms(), 3),
        "load_average_1_min": round(psutil.getloadavg()[0], 2),
    }


def describe_code(root: Path) -> dict[str, Any]:
    """The commit, and whether files other than the evidence differ from it; null outside of a git checkout."""
    commit = _git(root, "rev-parse", "HEAD")
    changes = _git(root, "status", "--porcelain", "--", ".", ":(exclude)docs/evidence")
    return {"commit": commit, "dirty": None if changes is None else bool(changes)}


def _git(root: Path, *arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return None
    return run.stdout.strip() if run.returncode == 0 else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _fdatasync_ms() -> float:
    """The median of what one small write and its way to the disk take, where the stores are."""
    took: list[float] = []
    with tempfile.TemporaryFile() as file:
        block = os.urandom(SYNC_BYTES)
        file.write(block * SYNCS)
        file.flush()
        os.fsync(file.fileno())
        for number in range(SYNCS):
            begin = time.perf_counter()
            os.pwrite(file.fileno(), block, number * SYNC_BYTES)
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begin)
    return statistics.median(took) * 1000
