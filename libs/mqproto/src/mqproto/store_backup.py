"""What broker, client and mqadmin have to agree on about a copy of a store (admin_service.proto, BackupStore)."""

from __future__ import annotations

from pathlib import PurePosixPath

# Of all files of a store the one that says who may open it. Who puts a store back writes it last.
VERSION_PATH = "version"
PART_BYTES_MAX = 1024 * 1024  # of a file's content in one message


def check_path(path: str) -> PurePosixPath:
    """The path of a file below the root of a store. Raises ValueError for one that leads anywhere else."""
    parts = path.split("/")
    if "\\" in path or "\0" in path or any(part in {"", ".", ".."} for part in parts) or ":" in parts[0]:
        raise ValueError(f"{path!r} is no path of a file below the root of a store")
    return PurePosixPath(path)
