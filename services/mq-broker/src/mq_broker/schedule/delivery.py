"""The end of a wait: a record that is due goes to the topic and queue it was sent to (MISSION D5).

Invariants: nothing is delivered that is done already, and what is delivered is done in the same step of the event loop,
so that a message that somebody takes back is either taken back or delivered; a write that the store refuses delivers
nothing of it. What waits for a retry topic whose group has been deleted with its offsets since is done without a
message: a later group of the name has nothing to try again. The deletion's record says so, also after a restart and on
a replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mq_broker.core.batches import Batch, runs
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayProgress, Lateness
from mq_broker.core.life import NO_SPANS, Operation, Spans, Step, traced
from mq_broker.schedule.ahead import Ahead, Ready

Listener = Callable[[int, Sequence[int]], None]
IsVoid = Callable[[str, int], bool]  # whether what waits at this log offset for this topic goes nowhere any more


@dataclass
class Delivery:
    """`put` appends batches to the log, creating topics where need be, and raises StoreWriteError.

    It takes `run_bytes_max` bytes with one write.
    """

    progress: DelayProgress
    time: BrokerTime
    put: Callable[[list[Batch], int], object]
    run_bytes_max: int
    is_void: IsVoid
    spans: Spans = NO_SPANS
    _lateness: dict[int, Lateness] = field(default_factory=dict)
    _listeners: list[Listener] = field(default_factory=list)

    def deliver_due(self, level: int, ahead: Ahead, now_ms: int, fast_ms: int = 0) -> None:
        """Deliver some of what is due of the queue with this number. Raises StoreError; then it is ahead as before.

        `now_ms`, and what is ahead, may be by a clock that is `fast_ms` ahead of broker time.
        """
        due = ahead.take_due(now_ms)
        try:
            self._deliver(level, due, fast_ms)
        except BaseException:
            ahead.put_back(due)
            raise

    def lateness(self, level: int) -> Lateness:
        """How late the deliveries of this queue were since the process started."""
        return self._lateness.setdefault(level, Lateness())

    def on_delivered(self, listener: Listener) -> None:
        """Have `listener` told of each step: the queue's number, and how late each delivery was in ms."""
        self._listeners.append(listener)

    def _deliver(self, level: int, due: Sequence[Ready], fast_ms: int) -> None:
        for one in due:
            if self.is_void(one.batch.topic, one.log_offset):
                self.progress.done(level, one.queue_offset)
        waiting = [one for one in due if not self.progress.is_done(level, one.queue_offset)]
        for run in runs(waiting, self.run_bytes_max, lambda one: one.batch):
            now_ms, store_ms = self.time.now_ms(), self.time.stamp_ms()
            with traced(self.spans, ((one.batch, _wait(level, one, store_ms, fast_ms)) for one in run)):
                self.put([one.batch for one in run], store_ms)
            for one in run:
                self.progress.done(level, one.queue_offset)
            self._count(level, [now_ms + fast_ms - one.due_ms for one in run])

    def _count(self, level: int, lateness_ms: Sequence[int]) -> None:
        self.lateness(level).add(lateness_ms)
        for listener in self._listeners:
            listener(level, lateness_ms)


def _wait(level: int, one: Ready, now_ms: int, fast_ms: int) -> Step:
    return Step(Operation.WAIT, one.stored_ms, now_ms, due_ms=one.due_ms - fast_ms, delay_level=max(level, 0))
