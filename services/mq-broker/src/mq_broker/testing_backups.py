"""Ready-made parts for tests of backups: a copy of a running broker's store, and the store that is made of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path

from mq_broker.processor.backup import BackupFile, BackupPart
from mq_broker.processor.broker import Broker
from mq_broker.testing import STORE_ROOT
from osenv import SimDisk


async def copied(broker: Broker) -> list[BackupPart]:
    """All parts of a copy."""
    async with aclosing(broker.backup.parts()) as parts:
        return [part async for part in parts]


def restored(parts: Sequence[BackupPart]) -> SimDisk:
    """The store that the parts make, as `mqadmin restore` writes it."""
    disk, path, at = SimDisk(), Path(), 0
    for part in parts:
        if isinstance(part, BackupFile):
            path, at = STORE_ROOT / part.path, 0
            disk.make_dirs(path.parent)
            disk.open(path, create=True).truncate(part.full_size)
        elif isinstance(part, bytes):
            disk.open(path).pwrite(part, at)
            at += len(part)
    return disk
