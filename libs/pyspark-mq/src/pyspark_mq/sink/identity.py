"""Who sends, and under which numbers: from what a replay of the batch has again (ADR "A sink that is recognised").

A number is made of the batch id, the kind of waiting, and the place in the lane: the rows of one partition that go to
one queue and wait in the same way.

Invariants: of one producer and queue no two rows have the same number, over all batches; numbers of a later batch are
larger; the same rows in the same order, in the same partition of the same batch, have the same numbers and the same
unique ids, whichever process sends them; a row's unique id depends on every row before it in its lane.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from mqclient import Message
from mqproto.properties import RETURNING_PRODUCERS_FROM, SEQUENCE_DIGITS_MAX, WRITE_PRODUCERS_FROM

BATCH_BITS, WAY_BITS = 32, 5
ROWS_MAX = (1 << (BATCH_BITS - WAY_BITS)) - 1  # of one lane
BATCH_ID_MAX = 10**SEQUENCE_DIGITS_MAX // (1 << BATCH_BITS) - 2  # 232 million
TIMED = 19  # a way of waiting, behind 0 (not at all) and the 18 delay levels
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class WriterIdentity:
    """One partition of one batch. `name` names the query, or the batch write; only one that `returns` is sent again
    after its job.
    """

    name: str
    partition: int
    batch_id: int = 0
    returns: bool = True

    @property
    def producer_id(self) -> int:
        """The same for all batches of the query: what a broker remembers does not grow with them."""
        of_writes = 2 * RETURNING_PRODUCERS_FROM - WRITE_PRODUCERS_FROM
        digest = int.from_bytes(blake2b(f"{self.name}:{self.partition}".encode(), digest_size=8).digest(), "big")
        if not self.returns:
            return WRITE_PRODUCERS_FROM + digest % of_writes
        producer_id = RETURNING_PRODUCERS_FROM + digest % RETURNING_PRODUCERS_FROM
        return producer_id if producer_id < WRITE_PRODUCERS_FROM else producer_id - of_writes

    @property
    def first_number(self) -> int:
        """Below it nothing is ever sent again: earlier batches are committed."""
        return self.batch_id << BATCH_BITS

    def number(self, way: int, place: int) -> int:
        """Of the row at `place` (from 0) of a lane."""
        return self.first_number + (way << (BATCH_BITS - WAY_BITS)) + place + 1


def way_of_waiting(message: Message) -> int:
    """0, its delay level, or TIMED."""
    return TIMED if message.deliver_at is not None else message.delay_level


class Chain:
    """The unique ids of a lane: each says what all rows up to the end of its request are."""

    def __init__(self, seed: str) -> None:
        self._digest = blake2b(seed.encode(), digest_size=DIGEST_BYTES).digest()

    def ids(self, contents: list[tuple[str, bytes]]) -> list[str]:
        """Of the rows of the next request, each as (properties, body)."""
        whole = blake2b(self._digest, digest_size=DIGEST_BYTES)
        for properties, body in contents:
            text = properties.encode()
            whole.update(b"%d %d " % (len(text), len(body)))
            whole.update(text)
            whole.update(body)
        self._digest = whole.digest()
        return [
            blake2b(b"%d" % place, key=self._digest, digest_size=DIGEST_BYTES).hexdigest().upper()
            for place in range(len(contents))
        ]
