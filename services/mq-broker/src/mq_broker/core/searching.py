"""Looking through the records of a queue for those whose properties fulfil a condition (MISSION F2).

A pull looks in steps: at as many records as it may bring first, and at more from step to step, since what has not been
found so far is rare. It ends when it has looked at SCAN_RECORDS_MAX records, or with the record that completes
PULL_BYTES_MAX bytes, so that a search holds up nothing else; then it says how far it has come.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mq_broker.core.message_filter import fulfils
from mq_broker.core.pulling import PULL_BYTES_MAX, Selection
from mqfilter import Condition
from mqproto.record import OFFSETS, OFFSETS_AT, SEGMENT_HEAD, encoded_properties

SCAN_RECORDS_MAX = 512
STEP_GROWTH = 3  # a step is this much more than all before it together


@dataclass(slots=True)
class Search:
    """One pull's search, which begins at queue offset `begin` and brings so many messages and bytes at the most.

    Invariant: everything before `at` has been looked at, and what is wanted of it is in the outcome.
    """

    condition: Condition
    begin: int
    max_messages: int
    max_bytes: int
    ended: bool = field(default=False, init=False)
    _chosen: Selection = field(default_factory=Selection, init=False)
    _parts: list[bytes] = field(default_factory=list, init=False)
    _bytes_chosen: int = field(default=0, init=False)
    _bytes_read: int = field(default=0, init=False)

    @property
    def at(self) -> int:
        """The queue offset at which the next step begins."""
        return self.begin + self._chosen.scanned

    @property
    def step(self) -> dict[str, int]:
        """How many messages and bytes to read next."""
        scanned, read = self._chosen.scanned, self._bytes_read
        return {
            "max_messages": min(max(self.max_messages, STEP_GROWTH * scanned), SCAN_RECORDS_MAX - scanned),
            "max_bytes": min(max(self.max_bytes, STEP_GROWTH * read), PULL_BYTES_MAX - read),
        }

    def look_at(self, found: Selection, records: bytes) -> None:
        """The step has found these records, which lie end to end; nothing, when no more can be read.

        At least one is chosen when one is wanted, however large it is.
        """
        at = 0
        while at < len(records):
            size = SEGMENT_HEAD.unpack_from(records, at)[0]
            if fulfils(self.condition, encoded_properties(records, at, size)):
                if self._parts and (self._is_full or self._bytes_chosen + size > self.max_bytes):
                    queue_offset, _ = OFFSETS.unpack_from(records, at + OFFSETS_AT)
                    self._chosen.scanned, self.ended = queue_offset - self.begin, True
                    return
                self._parts.append(records[at : at + size])
                self._bytes_chosen += size
            at += size
        self._chosen.scanned += found.scanned
        self._chosen.log_offset = found.log_offset
        self._bytes_read += len(records)
        has_looked_enough = self._chosen.scanned >= SCAN_RECORDS_MAX or self._bytes_read >= PULL_BYTES_MAX
        self.ended = not found.scanned or self._is_full or has_looked_enough

    def outcome(self) -> tuple[Selection, bytes]:
        """What was found, as the reader says it; `ranges` is left empty."""
        self._chosen.count = len(self._parts)
        return self._chosen, b"".join(self._parts)

    @property
    def _is_full(self) -> bool:
        return len(self._parts) >= self.max_messages
