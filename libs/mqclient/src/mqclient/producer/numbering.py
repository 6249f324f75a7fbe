"""Numbers by which a broker recognises a record that it has stored already (broker_service.proto, RecordBatch).

Invariants: the numbers of one (topic, queue id) go from 1 up and each is given once, also when its message fails; the
epoch never goes back, and no two streams that may have reached the broker share one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from itertools import count

from mqclient.message import MessageQueue
from mqproto.properties import (
    EPOCH_DIGITS_MAX,
    PRODUCER_SEQUENCE,
    SEQUENCE_DIGITS_MAX,
    producer_sequence_start,
)
from osenv import Rng

PRODUCER_ID_BITS = 62  # what is above comes back (RETURNING_PRODUCERS_FROM)
SEQUENCE_PROPERTY_BYTES_MAX = (
    len(f"{PRODUCER_SEQUENCE}\x01{producer_sequence_start(0, 10 ** (EPOCH_DIGITS_MAX - 1))}\x02") + SEQUENCE_DIGITS_MAX
)

_Counters = partial(defaultdict[int, Iterator[int]], partial(count, 1))  # of one topic, by queue id


class Numbering:
    """The producer id of one client and broker, its epoch, and the next number of each queue."""

    def __init__(self, rng: Rng) -> None:
        self.producer_id = rng.randrange(1, 1 << PRODUCER_ID_BITS)
        self.epoch = 0
        self._counters: defaultdict[str, defaultdict[int, Iterator[int]]] = defaultdict(_Counters)
        self.property_start = ""
        self.next_epoch()

    def next_epoch(self) -> None:
        """A new stream is about to be opened, and the last one may have reached the broker."""
        self.epoch += 1
        self.property_start = f"{PRODUCER_SEQUENCE}\x01{producer_sequence_start(self.producer_id, self.epoch)}"

    def next(self, queue: MessageQueue) -> int:
        """The next number of the queue. Its record says it as the property `property_start`, number, \\x02."""
        return next(self._counters[queue.topic][queue.queue_id])
