"""requirements/install.sh: which program installs a layer, and with what. Both programs are pretended."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = "requirements/runtime.lock"
HASHED = f"--require-hashes -r {LOCK}"
OURS = "--no-deps --no-build-isolation -e libs/osenv -e libs/mqproto"


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment whose pip and uv write down what they are asked for, and succeed."""
    (tmp_path / "bin").mkdir()
    pretend(tmp_path, "python", 'shift 2; echo "pip $*"')
    pretend(tmp_path, "uv", 'echo "uv $*"')
    return tmp_path


def pretend(venv: Path, name: str, script: str) -> None:
    program = venv / "bin" / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def install(venv: Path, **environment: str) -> list[str]:
    """What pip and uv were asked for, without what each call has."""
    run = subprocess.run(
        ["sh", "requirements/install.sh", str(venv), LOCK, "libs/osenv", "libs/mqproto"],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = run.stdout.replace(f" --python {venv}/bin/python", "").replace(f"{venv}/", "").splitlines()
    return [line.replace(" install --quiet", "").replace("uv pip", "uv") for line in lines]


def test_pip_installs_uv_by_its_hash_and_uv_the_rest(venv: Path) -> None:
    assert install(venv) == [
        "pip --require-hashes -r uv.lock",
        f"uv --compile-bytecode {HASHED}",
        f"uv --compile-bytecode {OURS}",
    ]
    first, *hashes = (venv / "uv.lock").read_text().splitlines()
    assert first.startswith("uv==")
    assert hashes
    assert all(line.strip().startswith("--hash=sha256:") for line in hashes)


def test_pip_installs_what_uv_cannot(venv: Path) -> None:
    pretend(venv, "uv", "exit 2")
    assert install(venv) == ["pip --require-hashes -r uv.lock", f"pip {HASHED}", f"pip {OURS}"]


def test_pip_installs_everything_where_there_is_no_uv(venv: Path) -> None:
    pretend(venv, "python", 'case "$*" in *uv.lock) exit 1;; esac; shift 2; echo "pip $*"')
    assert install(venv) == [f"pip {HASHED}", f"pip {OURS}"]


def test_pip_installs_everything_where_it_is_asked_to(venv: Path) -> None:
    assert install(venv, INSTALLER="pip") == [f"pip {HASHED}", f"pip {OURS}"]


def test_what_neither_can_install_is_an_error(venv: Path) -> None:
    pretend(venv, "python", "exit 1")
    pretend(venv, "uv", "exit 1")
    with pytest.raises(subprocess.CalledProcessError):
        install(venv)


def test_an_older_python_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    pretend(tmp_path, "old-python", "exit 1")
    with pytest.raises(subprocess.CalledProcessError) as rejected:
        install(tmp_path, PYTHON=str(tmp_path / "bin" / "old-python"))
    assert rejected.value.stderr == "Hourglass needs Python 3.11 or newer; try make PYTHON=python3.12\n"
