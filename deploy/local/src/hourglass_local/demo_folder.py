"""The folder of a demonstration or a load: emptied at its start, kept afterwards, and used by one at a time.

Invariant: nothing is deleted in a folder that does not have our mark, so that a mistyped path costs nobody his files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from osenv import RealDisk

MARK = ".hourglass-demo"


class FolderError(RuntimeError):
    """The folder cannot be used; the message says why."""


@contextmanager
def empty_folder(folder: Path) -> Iterator[None]:
    """Empty `folder` and hold it. Raises FolderError."""
    mark = folder / MARK
    try:
        if folder.exists() and any(folder.iterdir()) and not mark.exists():
            raise FolderError(f"{folder} is not empty and not the folder of an earlier demonstration; choose another")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FolderError(f"{folder} cannot be used: {error}") from error
    with held_folder(folder):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path != mark:
                path.unlink()
        yield


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """Hold `folder` as it is, so that nobody else empties or opens it. Raises FolderError."""
    try:
        lock = RealDisk().lock(folder / MARK)
    except OSError as error:
        raise FolderError(f"{folder} is being used by another demonstration") from error
    try:
        yield
    finally:
        lock.release()
