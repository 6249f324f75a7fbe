"""How much of what is there goes into the next micro-batch (MISSION Y2).

Invariants: no offset goes back, none passes its queue's end; a limit is kept exactly, and as long as there is something
to read at least one record is admitted, so that every record comes in the end.
"""

from __future__ import annotations

from collections.abc import Mapping

from mqclient import MessageQueue
from pyspark_mq.queue_offsets import Offsets


def admit(begin: Offsets, end: Offsets, limit: int) -> dict[MessageQueue, int]:
    """Where a batch of at most `limit` records ends. Every queue gets its share of what waits, rounded down;
    what rounding leaves over goes to those who lost most by it.
    """
    waiting = {queue: end[queue] - begin[queue] for queue in sorted(end)}
    total = sum(waiting.values())
    if total <= limit:
        return dict(end)
    share = {queue: limit * count // total for queue, count in waiting.items()}
    lost = sorted(waiting, key=lambda queue: (-(limit * waiting[queue] % total), queue))
    for queue in lost[: limit - sum(share.values())]:
        share[queue] += 1
    return {queue: begin[queue] + share[queue] for queue in end}


def waiting_records(begin: Offsets, end: Mapping[MessageQueue, int]) -> int:
    """How many records lie between."""
    return sum(end[queue] - begin[queue] for queue in end)
