"""Makes the secrets of one installation, each once: python make_secrets.py FOLDER [MOUNTED ...]

Every service has a folder of its own in FOLDER with what it needs and nothing else; in docker-compose.yml each is a
volume that only this service mounts. What is there stays as it is, so that this runs before every start. What two
services share is the same in both folders, also when one of them was lost.

MOUNTED are the folders of the clone of which containers mount files. A clone made under umask 077 is its owner's alone,
and containers run as another user: nothing starts before this says so.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

SECRET_BYTES = 32
DATABASE_HOST = "postgres:5432"
SERVICES = ("orders", "payments", "gateway")
POSTGRES = "postgres"


def random_text() -> str:
    return secrets.token_hex(SECRET_BYTES)


def signing_keys() -> str:
    """What *_AUTH_KEYS takes: a name and a secret."""
    return f"k1:{random_text()}"


# File -> the services that have it, and what makes it.
SHARED: dict[str, tuple[tuple[str, ...], Callable[[], str]]] = {
    "auth-keys": (("orders", "payments"), signing_keys),
    "gateway-api-key": (("payments", "gateway"), random_text),
    "webhook-secret": (("payments", "gateway"), random_text),
    **{f"{service}-password": ((POSTGRES,), random_text) for service in SERVICES},
    "postgres-password": ((POSTGRES,), random_text),
    "admin-password": (("grafana",), random_text),
}


def unreadable(folders: Sequence[Path]) -> list[Path]:
    """What this user cannot read of these folders, in the order of its names."""
    found: list[Path] = []

    def rejected(error: OSError) -> None:
        found.append(Path(error.filename))

    for folder in folders:
        for path, _, names in os.walk(folder, onerror=rejected):
            files = [Path(path, name) for name in names]
            found += [file for file in files if not os.access(file, os.R_OK, effective_ids=True)]
    return sorted(found)


def make_secrets(folder: Path) -> None:
    """Make those that are missing. Raises OSError."""
    for name, (services, make) in SHARED.items():
        keep_or_make([folder / service / name for service in services], make)
    for service in SERVICES:
        password = (folder / POSTGRES / f"{service}-password").read_text(encoding="utf-8").strip()
        url = f"postgresql+asyncpg://{service}:{password}@{DATABASE_HOST}/{service}"
        keep_or_make([folder / service / "database-url"], partial(str, url))


def keep_or_make(paths: list[Path], make: Callable[[], str]) -> None:
    """The same text in all of these files: that of the first one which is there, or a new one. Raises OSError."""
    text = next((path.read_text(encoding="utf-8") for path in paths if path.exists()), None) or make() + "\n"
    for path in paths:
        if not path.exists():
            write(path, text)


def write(path: Path, text: str) -> None:
    """The whole file or nothing, and readable by its owner only at any moment. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.new")
    unfinished.unlink(missing_ok=True)
    with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)


def main() -> int:
    """The exit code is 2 for wrong arguments, 1 when a file cannot be written, or what is mounted cannot be read."""
    if len(sys.argv) < 2:
        print(f"usage: {sys.argv[0]} FOLDER [MOUNTED ...]", file=sys.stderr)
        return 2
    if closed := unreadable([Path(argument) for argument in sys.argv[2:]]):
        reader = f"the containers' user {os.geteuid()} cannot read {closed[0]} and {len(closed) - 1} more of this clone"
        print(f"make_secrets: {reader}; run: chmod -R a+rX deploy", file=sys.stderr)
        return 1
    try:
        make_secrets(Path(sys.argv[1]))
    except OSError as error:
        print(f"make_secrets: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
