"""The offsets of a broadcasting consumer, kept on its own machine (MISSION C2)."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from mqclient.client_instance import ClientInstance
from mqclient.consumer.local_offset_store import LocalFileOffsetStore
from mqclient.consumer.offset_store import FROM_FIRST
from mqclient.consumer.progress import Progress
from mqclient.consumer.pulling import offset_at, offsets_of
from mqclient.errors import MQClientError
from mqclient.message import MessageQueue

logger = logging.getLogger("mqclient.broadcast_offsets")


class BroadcastOffsetStore:
    """An OffsetStore over a file, or in memory without one. Each member begins by itself: with what it kept, or at
    `begin`."""

    def __init__(
        self, instance: ClientInstance, begin: broker_pb.ConsumeBegin, file: LocalFileOffsetStore | None
    ) -> None:
        self._instance = instance
        self._begin = begin
        self._file = file
        self._offsets: dict[MessageQueue, int] = {}
        self._saved: dict[MessageQueue, int] = {}
        self._known: frozenset[str] = frozenset()  # topics with which this member had begun before it started

    async def open(self) -> None:
        """Read the file. Raises IllegalStateError when another process of this name has it."""
        if self._file is not None:
            self._saved = await self._file.load()
        self._offsets = dict(self._saved)
        self._known = frozenset(queue.topic for queue in self._saved)

    async def begin(self, queue: MessageQueue, *, from_first: bool = False) -> Progress:
        """What was kept, or what the broker says of the beginning. Raises MQClientError.

        A queue of which nothing was kept was made later if something was kept of its topic, and begins with its first
        message.
        """
        kept = self._offsets.get(queue)
        if kept is None:
            begin = FROM_FIRST if from_first or queue.topic in self._known else self._begin
            kept = self._offsets[queue] = await self._ask(queue, begin)
        return Progress(kept)

    async def commit(self, progress: Mapping[MessageQueue, Progress]) -> bool:
        """Write what has changed. What the disk does not take is logged; the next commit of any queue tries again."""
        self._offsets.update((queue, one.offset) for queue, one in progress.items())
        if self._file is None or self._offsets == self._saved:
            return True
        offsets = dict(self._offsets)
        try:
            await self._file.save(offsets)
        except MQClientError as error:
            logger.warning("offsets were not saved: %s", error)
        else:
            self._saved = offsets
        return True

    def forget(self, queue: MessageQueue) -> None:
        """The file keeps what it has: the queue may come back."""

    def doubt(self) -> None:
        """Nobody else sets these offsets."""

    async def close(self) -> None:
        """Let another process have the file."""
        if self._file is not None:
            await self._file.close()

    async def _ask(self, queue: MessageQueue, begin: broker_pb.ConsumeBegin) -> int:
        connection = self._instance.calls.readers(queue.broker_name)
        if begin.where == broker_pb.CONSUME_FROM_TIMESTAMP:
            return await offset_at(connection, queue, begin.timestamp_ms)
        first, end = await offsets_of(connection, queue)
        return first if begin.where == broker_pb.CONSUME_FROM_FIRST_OFFSET else end
