"""All consume queues of a store.

Invariant: the folder of a queue is named after its topic and its id, and a queue that has a folder is here.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator

from mq_broker.store.consume_queue import ConsumeQueue
from mq_broker.store.errors import StoreDamagedError
from mq_broker.store.layout import CONSUME_QUEUE_AHEAD_BYTES, StoreLayout
from mq_broker.store.segment_files import SegmentFiles
from osenv import PooledFiles

log = logging.getLogger(__name__)


class ConsumeQueues:
    """Queues by topic and queue id."""

    def __init__(self, open_files: PooledFiles, layout: StoreLayout) -> None:
        self._open_files, self._disk, self._layout = open_files, open_files.disk, layout
        self._queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._of_topic: defaultdict[str, list[ConsumeQueue]] = defaultdict(list)

    def open_all(self) -> Iterator[ConsumeQueue]:
        """Open every queue that has a folder, each when it is asked for: its file is open while it is looked at.

        Raises StoreDamagedError.
        """
        for topic in self._disk.list_dir(self._layout.consume_queues):
            for queue_id in self._disk.list_dir(self._layout.consume_queues / topic):
                if not queue_id.isdigit():
                    folder = self._layout.consume_queues / topic / queue_id
                    raise StoreDamagedError(f"{folder}: a queue's folder is named by its number; move this away")
                yield self.get_or_open(topic, int(queue_id))

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, when anything was ever stored in it."""
        return self._queues.get((topic, queue_id))

    def get_or_open(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue; a new one has no file before its first entry. Raises OSError, StoreDamagedError."""
        return self._queues.get((topic, queue_id)) or self._open(topic, queue_id)

    def of_topic(self, topic: str) -> list[ConsumeQueue]:
        """The queues of this topic in which anything was ever stored."""
        return list(self._of_topic.get(topic, ()))

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._queues.values())

    @property
    def entry_count(self) -> int:
        """Entries that were ever written, over all queues."""
        return sum(queue.max_offset for queue in self)

    def wipe(self) -> None:
        """Forget every entry of every queue; the log tells them again."""
        for queue in self:
            queue.wipe()

    def close(self) -> None:
        """Give the files back."""
        for queue in self:
            queue.close()

    def _open(self, topic: str, queue_id: int) -> ConsumeQueue:
        try:
            files = SegmentFiles(
                self._open_files,
                self._layout.root,
                self._layout.consume_queue(topic, queue_id),
                self._layout.consume_queue_file_bytes,
                ahead_bytes=CONSUME_QUEUE_AHEAD_BYTES,
            )
        except ValueError as error:
            raise StoreDamagedError(str(error)) from error
        if files.stray:
            log.error("queue %d of %s: files are missing before %020d", queue_id, topic, files.stray[0])
            files.drop(files.stray)
        queue = self._queues[topic, queue_id] = ConsumeQueue(topic, queue_id, files)
        self._of_topic[topic].append(queue)
        return queue
