"""How long a newcomer waits for the end of `make demo`, from a fresh clone with empty caches:

    .venv/bin/python tests/robustness/first_minutes.py [--before COMMIT]

Clones the last commit, not what is uncommitted, and the commit before it, each into an empty folder; runs `make demo`
there with caches of its own; and writes docs/evidence/first-minutes.json. The packages come from wherever pip and uv
take them on this machine, so its network is part of what is measured. A demonstration that fails is no measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from hourglass_loadtest.machine import describe_code, describe_run
from hourglass_local.process import MIB

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs/evidence/first-minutes.json"
TIMEOUT_S = 900  # of one clone
GOAL_S, DEMO_GOAL_S = 60, 20
NOT_WANTED = ("pyspark", "locust", "sphinx")


def measure(commit: str) -> dict[str, Any]:
    """Seconds and sizes of one clone at `commit`. Raises SystemExit where the demonstration fails."""
    with tempfile.TemporaryDirectory(prefix="hourglass-first-minutes-") as name:
        folder, clone = Path(name), Path(name, "clone")
        begin = time.monotonic()
        subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(clone)], check=True, timeout=TIMEOUT_S)
        subprocess.run(["git", "checkout", "--quiet", commit], cwd=clone, check=True, timeout=TIMEOUT_S)
        cloned = time.monotonic()
        make_demo(clone, folder)
        seconds = time.monotonic() - cloned
        demo_s = json.loads((clone / ".demo/summary.json").read_text())["duration_s"]
        packages = [path for path in (clone / ".venv").glob("lib/python*/site-packages/*.dist-info") if path.is_dir()]
        found = [name for name in NOT_WANTED if any(path.name.startswith(f"{name}-") for path in packages)]
        return {
            "commit": describe_code(clone)["commit"],
            "clone_s": round(cloned - begin, 1),
            "make_demo_s": round(seconds, 1),
            "of_it_install_s": round(seconds - demo_s, 1),
            "of_it_demo_s": demo_s,
            "venv_mib": round(size_bytes(clone / ".venv") / MIB),
            "venv_distributions": len(packages),
            "venv_has": found,
            "load_average_1_min": round(os.getloadavg()[0], 2),
        }


def make_demo(clone: Path, caches: Path) -> None:
    """Run it with caches that are empty. Raises SystemExit when it fails, or takes longer than TIMEOUT_S."""
    environment = os.environ | {
        name: str(caches / name.lower()) for name in ("PIP_CACHE_DIR", "UV_CACHE_DIR", "XDG_CACHE_HOME")
    }
    inherited = ("VIRTUAL_ENV", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "PYTHON", "INSTALLER")
    environment = {name: text for name, text in environment.items() if name not in inherited}
    running = subprocess.Popen(["make", "demo"], cwd=clone, env=environment, start_new_session=True)
    try:
        code = running.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGTERM)
        raise SystemExit(f"make demo takes longer than {TIMEOUT_S} s") from None
    if code:
        raise SystemExit(f"make demo of {clone} ended with code {code}")


def size_bytes(folder: Path) -> int:
    """What its files take on the disk."""
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures `make demo` in a fresh clone with empty caches.")
    parser.add_argument("--before", default="HEAD~1", help="the commit to compare with; default: %(default)s")
    parser.add_argument("--out", type=Path, default=EVIDENCE)
    options = parser.parse_args()
    document = describe_run() | {"goals": {"make_demo_s": GOAL_S, "of_it_demo_s": DEMO_GOAL_S}}
    results = {name: measure(commit) for name, commit in (("now", "HEAD"), ("before", options.before))}
    print(json.dumps(results, indent=2))
    options.out.write_text(json.dumps(document | {"results": results}, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
