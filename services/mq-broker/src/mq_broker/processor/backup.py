"""A copy of the store of a running broker, for an operator who wants to keep it (ADR 41).

Invariants: the copy is one moment, and holds everything that was acknowledged before it was asked for; one is made at a
time, with one part of it in memory; without a `BackupEnd` it is not complete.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.refusals import RefusedError
from mq_broker.store.message_store import MessageStore
from mq_broker.store.store_copy import StoreCopy
from mqproto.codes import PART_BYTES_MAX, ResponseCode


@dataclass(frozen=True, slots=True)
class BackupFile:
    """The next `size` bytes are this file's; see admin_service.proto."""

    path: str
    size: int
    full_size: int


@dataclass(frozen=True, slots=True)
class BackupEnd:
    """The copy is complete; see admin_service.proto."""

    broker_name: str
    timestamp_ms: int
    log_min_offset: int
    log_max_offset: int
    files: int
    size: int
    crc32: int


BackupPart = BackupFile | BackupEnd | bytes


@dataclass
class Backup:
    """The processor of backups."""

    store: MessageStore
    time: BrokerTime
    broker_name: str
    _is_running: bool = field(default=False, init=False)

    async def parts(self) -> AsyncGenerator[BackupPart, None]:
        """The copy; to be closed by who does not read it to its end.

        Raises RefusedError while another one is made, StoreFencedError, OSError.
        """
        if self._is_running:
            raise RefusedError(ResponseCode.SYSTEM_BUSY, "another backup is being made; one at a time")
        self._is_running = True
        copy: StoreCopy | None = None
        try:
            timestamp_ms = self.time.now_ms()
            copy = StoreCopy(self.store, self.store.states.current())
            files = await copy.prepare()
            size = crc = 0
            for file in files:
                yield BackupFile(file.path, file.size, file.full_size)
                for at in range(0, file.size, PART_BYTES_MAX):
                    part = await self.store.disk.offload(file.read, min(PART_BYTES_MAX, file.size - at), at)
                    size, crc = size + len(part), await self.store.disk.offload(zlib.crc32, part, crc)
                    yield part
            yield BackupEnd(self.broker_name, timestamp_ms, copy.log_begin, copy.log_end, len(files), size, crc)
        finally:
            self._is_running = False
            if copy is not None:
                copy.close()
