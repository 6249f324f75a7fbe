"""The next number of each queue, noted while the consume queues are built anew.

A number that was given to a durable message is never given again. A queue whose messages are all gone, deleted with
the beginning of the log or damaged, knows its next number from its own files only, and a rebuild wipes these: so it is
noted before, durably, and the note goes when a checkpoint has made the new files durable.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mq_broker.core import documents
from mq_broker.store.json_state import encode_document, read_document, write_document
from mq_broker.store.layout import StoreLayout
from osenv import Disk

log = logging.getLogger(__name__)

QueueKey = tuple[str, int]  # topic and queue id
Given = tuple[int, int]  # how many numbers were given, and where in the log the last of them stood; -1: not known


class QueueNumbers:
    """The note of one store."""

    def __init__(self, disk: Disk, layout: StoreLayout) -> None:
        self._disk, self._path = disk, layout.queue_numbers
        self._is_there = False

    def read(self) -> dict[QueueKey, Given]:
        """What a rebuild that did not come to its end has noted; empty without one. Raises OSError."""
        self._is_there = self._disk.exists(self._path)
        document = read_document(self._disk, self._path)
        try:
            return numbers_of(document) if document is not None else {}
        except (KeyError, TypeError, ValueError) as error:
            log.error("%s is not of the form it should have: %r", self._path, error)  # noqa: TRY400
            return {}

    def note(self, numbers: Mapping[QueueKey, Given]) -> None:
        """Keep the numbers, durably. Raises OSError."""
        told = {key: given for key, given in numbers.items() if given[0]}
        if not told:
            return
        write_document(self._disk, self._path, encode_numbers(told), keep_previous=False)
        self._is_there = True

    def forget_from(self, log_offset: int) -> None:
        """The log is cut there: what was noted of messages from there on does not count, durably. Raises OSError."""
        noted = self.read()
        kept = {key: given for key, given in noted.items() if given[1] < log_offset}
        if not kept:
            self.forget()
        elif kept != noted:
            self.note(kept)

    def forget(self) -> None:
        """The files are durable again. Raises OSError."""
        if self._is_there:
            self._disk.unlink(self._path)
            self._disk.sync_dir(self._path.parent)
            self._is_there = False


def encode_numbers(numbers: Mapping[QueueKey, Given]) -> bytes:
    """The note's bytes."""
    table = {f"{topic}:{queue_id}": list(given) for (topic, queue_id), given in sorted(numbers.items())}
    return encode_document({"numbers": table}, 0)


def numbers_of(document: dict[str, Any]) -> dict[QueueKey, Given]:
    """What a note says. Raises KeyError, TypeError, ValueError when it is not of this form."""
    numbers = {}
    for name, (given, newest) in documents.table(document, "numbers").items():
        topic, _, queue_id = name.rpartition(":")
        numbers[topic, int(queue_id)] = int(given), int(newest)
    return numbers
