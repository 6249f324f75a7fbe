"""Writes what Python packages an image has, as a CycloneDX bill of materials: python sbom.py IMAGE FILE

It is read off the image itself. What the base image has, Debian's packages, is its maker's bill.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
from pathlib import Path

SITE_PACKAGES = "/venv/lib"
TIMEOUT_S = 120


def write_bill(image: str, file: Path) -> None:
    """Raises subprocess.SubprocessError."""
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder, "environment")
        venv.create(environment, with_pip=False, symlinks=True)
        [ours] = environment.glob("lib/python*/site-packages")
        container = _run("docker", "create", image).strip()
        try:
            _run("docker", "cp", f"{container}:{SITE_PACKAGES}", folder)
        finally:
            _run("docker", "rm", container)
        ours.rmdir()
        [theirs] = Path(folder, "lib").glob("python*/site-packages")
        theirs.rename(ours)
        tool = [sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible"]
        _run(*tool, "--output-file", str(file), str(environment))


def _run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=True)  # noqa: S603
    return done.stdout


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} IMAGE FILE")
    write_bill(sys.argv[1], Path(sys.argv[2]))
