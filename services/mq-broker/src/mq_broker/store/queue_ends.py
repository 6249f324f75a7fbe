"""The ends of consume queues at a checkpoint, so that a start need not find them in the files (ADR 141)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from mq_broker.core import documents
from mq_broker.store.consume_queue import ConsumeQueues, QueueKey
from mq_broker.store.layout import Checkpoint, StoreLayout
from mq_broker.store.state_files import LOG_OFFSET, encode_document, read_document, write_document
from osenv import Disk

log = logging.getLogger(__name__)

Bounds = tuple[int, int]  # the first offset of a queue, and the one behind its last message
Moment = tuple[int, int, int]  # log offset and entry count of a checkpoint, and where the log began


class QueueEnds:
    """The note of a store, `config/queueEnds.json`: the bounds of each queue whose entries stand in one file.

    Invariants: a note is on disk before the checkpoint that it belongs to; it counts for that checkpoint alone, and
    only while the log begins where it began then, so that no queue has lost its first messages since.
    """

    def __init__(self, disk: Disk, layout: StoreLayout) -> None:
        self._disk, self._path = disk, layout.queue_ends
        self._noted: Moment | None = None

    def read(self, checkpoint: Checkpoint, log_begin: int) -> dict[QueueKey, Bounds]:
        """The bounds at this checkpoint; empty when the note is of another moment, damaged or lost. Raises OSError."""
        document = read_document(self._disk, self._path)
        if document is None:
            return {}
        try:
            moment = int(document[LOG_OFFSET]), int(document["entryCount"]), int(document["logBegin"])
            bounds = bounds_of(document)
        except (KeyError, TypeError, ValueError) as error:
            log.error("%s is not of the form it should have: %r", self._path, error)  # noqa: TRY400
            return {}
        return bounds if moment == (checkpoint.log_offset, checkpoint.entry_count, log_begin) else {}

    def take_note(self, queues: ConsumeQueues, checkpoint: Checkpoint, log_begin: int) -> Callable[[], None]:
        """The call that writes down, durably, how the queues are now; it may run in a thread. It raises OSError."""
        moment = checkpoint.log_offset, checkpoint.entry_count, log_begin
        if moment == self._noted:
            return lambda: None
        table = defaultdict[str, list[tuple[int, int, int]]](list)
        for one in queues:
            if one.is_in_one_file:
                table[one.topic].append((one.queue_id, one.first_offset, one.max_offset))

        def write() -> None:
            self._noted = None
            content = encode_document(
                {"entryCount": moment[1], "logBegin": log_begin, "queues": table}, checkpoint.log_offset
            )
            write_document(self._disk, self._path, content, keep_previous=False)
            self._noted = moment

        return write


def bounds_of(document: Mapping[str, Any]) -> dict[QueueKey, Bounds]:
    """What a note says. Raises KeyError, TypeError, ValueError when it is not of this form."""
    return {
        (topic, int(queue_id)): (int(first), int(end))
        for topic, queues in documents.table(document, "queues").items()
        for queue_id, first, end in queues
    }
