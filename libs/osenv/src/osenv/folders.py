"""Folders, and what makes them survive a power cut."""

from __future__ import annotations

import errno
from pathlib import Path

from osenv.disk import Disk

_NOT_OURS = {errno.EACCES, errno.EPERM, errno.EROFS}  # who cannot change a folder has not made anything in it


def make_durable_dirs(disk: Disk, folder: Path) -> None:
    """Have the folder, durably, with all its parents. Raises OSError.

    Every parent is synced, not only those of folders that were missing: a process that made them may have been killed
    before it could sync them.
    """
    disk.make_dirs(folder)
    for parent in folder.parents:
        try:
            disk.sync_dir(parent)
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
