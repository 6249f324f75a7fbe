"""What every queue of waiting messages asks: how many records wait, which are lost, and what comes first."""

from __future__ import annotations

from collections.abc import Container, Iterable

from mq_broker.core.delays import DelayProgress
from mq_broker.core.topics import waiting_queue
from mq_broker.store.message_store import MessageStore


def waiting_in(store: MessageStore, progress: DelayProgress, level: int) -> int:
    """How many records of the queue with this number are not done."""
    queue = store.queue(*waiting_queue(level))
    if queue is None:
        return 0
    begin = max(progress.next_offset(level), queue.min_offset)
    return max(0, queue.max_offset - begin - progress.done_ahead(level))


def give_up_lost(progress: DelayProgress, level: int, scanned: Iterable[int], found: Container[int]) -> None:
    """Of these offsets of the queue, those not found are done: lost to damage, or of no use, as was reported."""
    for offset in scanned:
        if offset not in found:
            progress.done(level, offset)


def first(*times: int | None) -> int | None:
    """The earliest of these times; None without one."""
    return min((at for at in times if at is not None), default=None)
