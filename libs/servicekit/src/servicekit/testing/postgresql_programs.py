"""Where PostgreSQL's programs are: on the PATH, or where Debian puts them, which is not on it."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
from pathlib import Path

VERSION_MIN = 15
SYSTEM_USER = "postgres"
DEBIAN_FOLDERS = Path("/usr/lib/postgresql")
NEEDED = ("postgres", "initdb", "psql")
PROBE_MAX_S = 30


class NoPostgresError(RuntimeError):
    """PostgreSQL cannot be run on this machine; the sentence says why."""


def programs_folder() -> Path:
    """The folder of the newest PostgreSQL. Raises NoPostgresError when there is none that will do."""
    found = shutil.which("postgres")
    folders = [Path(found).resolve().parent] if found else []
    folders += DEBIAN_FOLDERS.glob("*/bin")
    complete = [folder for folder in folders if all((folder / name).exists() for name in NEEDED)]
    if not complete:
        raise NoPostgresError(f"not installed: PostgreSQL {VERSION_MIN} or newer, with {', '.join(NEEDED)}")
    version, newest = max((_version(folder), folder) for folder in complete)
    if version < VERSION_MIN:
        raise NoPostgresError(f"PostgreSQL has to be {VERSION_MIN} or newer, and in {newest} it is {version}")
    if os.geteuid() == 0 and not _has_user():
        raise NoPostgresError(f"PostgreSQL refuses root, and there is no user {SYSTEM_USER}")
    return newest


def _version(folder: Path) -> int:
    command = [str(folder / "postgres"), "--version"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_MAX_S, check=False)  # noqa: S603
    match = re.search(r"\(PostgreSQL\) (\d+)", run.stdout)
    return int(match[1]) if match else 0


def _has_user() -> bool:
    try:
        pwd.getpwnam(SYSTEM_USER)
    except KeyError:
        return False
    return True
