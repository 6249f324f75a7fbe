"""Large bodies made smaller before they leave (RocketMQ's compressMsgBodyOverHowmuch).

Invariant: messages for queues that their callers have chosen leave in the order in which they were sent, also when a
thread needs longer for one of them than for the next.
"""

from __future__ import annotations

import asyncio
import sys

from mqclient.lifecycle import WorkerThreads
from mqclient.message import ZLIB_FLAGS, compress
from mqclient.producer.outgoing import Outgoing, OutgoingBatch

IN_THREAD_OVER_BYTES = 256 * 1024  # some milliseconds of work, for which other tasks would have to wait


class BodyCompressor:
    """Compresses bodies of `from_bytes` or more, none if that is None."""

    def __init__(self, from_bytes: int | None, level: int) -> None:
        self.from_bytes = sys.maxsize if from_bytes is None else from_bytes
        self._level = level
        self._in_order = asyncio.Lock()
        self._threads = WorkerThreads("mqclient-compression", 1)

    async def compress(self, outgoing: Outgoing | OutgoingBatch, *, in_order: bool) -> None:
        """Compress the body if it is large enough and that pays, and wait for earlier ones if order matters."""
        if not in_order:
            await self._compress(outgoing)
            return
        async with self._in_order:  # fair: who came first goes first
            await self._compress(outgoing)

    def close(self) -> None:
        self._threads.close()

    async def _compress(self, outgoing: Outgoing | OutgoingBatch) -> None:
        if isinstance(outgoing, OutgoingBatch) or outgoing.compressible_bytes < self.from_bytes:
            return
        if outgoing.compressible_bytes > IN_THREAD_OVER_BYTES:
            compressed = await self._threads.run(compress, outgoing.body, self._level)
        else:
            compressed = compress(outgoing.body, self._level)
        if compressed is not None:
            outgoing.body = compressed
            outgoing.sys_flag |= ZLIB_FLAGS
