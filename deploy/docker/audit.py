"""Asks whether something is known against what the images have: python audit.py

Exit code 0: nothing is; 1: something is, or a package could not be looked up; 2: no source of advisories is reached, so
that nothing was found out.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LOCKS = sorted((Path(__file__).parent / "requirements").glob("*.lock"))
TIMEOUT_S = 600
EXIT_NOT_AUDITED = 2
# What pip-audit writes when its source does not answer, as against what it found. A pin of the lock that is "not found"
# was installed from another index: the one that was asked lacks it.
UNREACHED = ("ConnectionError", "ServiceError", "Max retries", "timed out", "Dependency not found on PyPI")


def main() -> int:
    files = [argument for lock in LOCKS for argument in ("--requirement", str(lock))]
    command = [sys.executable, "-m", "pip_audit", "--strict", "--disable-pip", "--require-hashes", *files]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        print(f"not audited: no answer within {TIMEOUT_S} s", file=sys.stderr)
        return EXIT_NOT_AUDITED
    if run.returncode and any(sign in run.stderr for sign in UNREACHED):
        print(f"not audited: no source of advisories is reached ({run.stderr.splitlines()[-1]})", file=sys.stderr)
        return EXIT_NOT_AUDITED
    print(run.stdout + run.stderr, end="")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main())
