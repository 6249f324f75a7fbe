"""The offsets of one group on one machine, in a file: what a broadcasting consumer goes on from (MISSION C2).

    <home>/.rocketmq_offsets/<ip>@<instance name>/<group>/offsets.json

The folder is RocketMQ's. Its name for the client has no process id, because it has to be the same after a restart: for
two consumers of one group on one machine, give each a ClientConfig with an `instance_name` of its own. The same holds
for two clusters, and for a machine whose address changes: it begins anew there.

Invariants: one process has the file, by a lock that ends with it; after a crash at any moment the file, or its previous
version beside it (.bak), is whole; a file that cannot be read is never taken for "nothing consumed yet".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from mqclient.consumer.local_offset_file import decode_offsets, encode_offsets
from mqclient.errors import IllegalArgumentError, IllegalStateError, RetryableError
from mqclient.lifecycle import to_the_end
from mqclient.message import MessageQueue
from osenv import Disk, FileLock, RealDisk, replace_file
from osenv.disk import read_file
from osenv.windows_disk import disk_of_this_system

logger = logging.getLogger("mqclient.local_offset_store")

FOLDER = ".rocketmq_offsets"
FILE, BACKUP, LOCK = "offsets.json", "offsets.json.bak", "lock"
SEPARATORS = "/\\\0"


class LocalFileOffsetStore:
    """`load` it once, `save` as often as wanted, `close` it in the end. Files are read and written in a thread."""

    def __init__(
        self,
        group: str,
        instance_name: str,
        local_ip: str,
        directory: Path | None = None,
        *,
        disk: Disk | None = None,
    ) -> None:
        """`directory` takes the place of <home>/.rocketmq_offsets; `disk` that of this system's files.

        Raises IllegalArgumentError when the instance name cannot be a folder's, or there is no home.
        """
        if any(character in SEPARATORS for character in instance_name):
            raise IllegalArgumentError(
                f"instance_name is {instance_name!r}; that of a broadcasting consumer names a folder, without / and \\"
            )
        self.path = (directory or _home() / FOLDER) / f"{local_ip}@{instance_name}" / group / FILE
        self._group = group
        self._given_disk = disk
        self._own_disk: RealDisk | None = None
        self._disk: Disk | None = None
        self._lock: FileLock | None = None
        self._one_at_a_time = asyncio.Lock()

    async def load(self) -> dict[MessageQueue, int]:
        """What was saved last; empty at the first start. From here on no other process can have the file.

        Raises IllegalStateError when another one has it, when it and its .bak are damaged, and when it cannot be used.
        """
        disk = self._given_disk
        if disk is None:
            disk = self._own_disk = disk_of_this_system()
        self._disk = disk
        try:
            return await to_the_end(disk.offload(self._lock_and_read, disk))
        except BaseException:
            await self.close()
            raise

    async def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Let the file say this and nothing else; durable on return, and the content before is kept as .bak.

        Raises IllegalStateError unless loaded, and RetryableError when the disk does not take it.
        """
        content = encode_offsets(offsets)
        async with self._one_at_a_time:
            disk = self._disk
            if disk is None:
                raise IllegalStateError(f"the offsets in {self.path} are not open: load comes before, and close after")
            try:
                await to_the_end(disk.offload(replace_file, disk, self.path, content))
            except OSError as error:
                raise RetryableError(f"the offsets of {self._group} were not saved in {self.path}: {error}") from error

    async def close(self) -> None:
        """Let another process have the file; waits for a `save` that runs. Does nothing the second time."""
        async with self._one_at_a_time:
            self._disk = None
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()
            own_disk, self._own_disk = self._own_disk, None
            if own_disk is not None:
                own_disk.close()

    def _lock_and_read(self, disk: Disk) -> dict[MessageQueue, int]:
        folder = self.path.parent
        try:
            disk.make_dirs(folder)
            for new in (folder, *folder.parents[:2]):
                disk.sync_dir(new.parent)
            self._lock = disk.lock(folder / LOCK)
            return self._read(disk)
        except BlockingIOError as error:
            raise IllegalStateError(
                f"another consumer on this machine has the offsets of {self._group} in {folder}; "
                f"give one of the two a ClientConfig with another instance_name"
            ) from error
        except OSError as error:
            raise IllegalStateError(f"the offsets of {self._group} cannot be kept in {folder}: {error}") from error

    def _read(self, disk: Disk) -> dict[MessageQueue, int]:
        damage = []
        for path in (self.path, self.path.with_name(BACKUP)):
            try:
                offsets = decode_offsets(read_file(disk, path))
            except FileNotFoundError:
                continue
            except ValueError as error:
                damage.append(f"{path.name}: {error}")
                continue
            if path != self.path:
                logger.error(
                    "%s is lost or damaged (%s); %s is used, and what was consumed since then comes again",
                    self.path,
                    "; ".join(damage) or "it is not there",
                    path.name,
                )
                # At once, and without a previous version: the damaged file must not take the place of the good one.
                replace_file(disk, self.path, encode_offsets(offsets), keep_previous=False)
            return offsets
        if damage:
            raise IllegalStateError(
                f"the offsets of {self._group} in {self.path.parent} are damaged ({'; '.join(damage)}); "
                f"repair the file, or remove it to begin anew"
            )
        return {}


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise IllegalArgumentError(f"there is no home folder ({error}); set local_offset_store_dir") from error
