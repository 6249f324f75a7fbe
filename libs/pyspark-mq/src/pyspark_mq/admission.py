"""How much of what is there goes into the next micro-batch (MISSION Y2).

Invariants: no offset passes its queue's end, and none goes back unless its queue has become shorter; a limit is kept
exactly. A queue with something to read gets at least one record of each batch or, when the limit is below the number of
such queues, one in turn with the others: no queue waits for ever, however fast the others are filled.
"""

from __future__ import annotations

from collections.abc import Mapping

from mqclient import MessageQueue
from pyspark_mq.queue_offsets import Offsets


def admit(begin: Offsets, end: Offsets, limit: int) -> dict[MessageQueue, int]:
    """Where a batch of at most `limit` records ends.

    Every queue gets one record, and its share of the rest, rounded down; what rounding leaves over goes to those that
    lost most by it. When not even one record each is allowed, the queues take turns: what was read until now says whose
    turn it is.
    """
    waiting = {queue: end[queue] - begin[queue] for queue in sorted(end) if end[queue] > begin[queue]}
    total, count = sum(waiting.values()), len(waiting)
    if total <= limit:
        return dict(end)
    if limit <= count:
        turn = sum(begin.values()) % count
        share = dict.fromkeys((*waiting, *waiting)[turn : turn + limit], 1)
    else:
        more, beyond = limit - count, total - count
        share = {queue: 1 + more * (size - 1) // beyond for queue, size in waiting.items()}
        lost = sorted(waiting, key=lambda queue: (-(more * (waiting[queue] - 1) % beyond), queue))
        for queue in lost[: limit - sum(share.values())]:
            share[queue] += 1
    return {queue: min(begin[queue] + share.get(queue, 0), end[queue]) for queue in end}  # one may have become shorter


def waiting_records(begin: Offsets, end: Mapping[MessageQueue, int]) -> int:
    """How many records lie between."""
    return sum(end[queue] - begin[queue] for queue in end)
