"""What consumers may see of the store, and who is told when that grows.

Invariant: nobody is told of a queue before all of what was appended to it can be read; everybody is told afterwards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from mq_broker.store.confirmation import Confirmation
from mq_broker.store.queue_numbers import QueueKey
from osenv import Clock


class Readable:
    """Of one store, of which `stored_end` tells what this broker vouches for."""

    def __init__(self, clock: Clock, stored_end: Callable[[], int]) -> None:
        self._stored_end = stored_end
        self._waiting: deque[tuple[int, QueueKey]] = deque()  # where in the log, and in which queue
        self._listeners: list[Callable[[str, int], None]] = []
        self.confirmation = Confirmation(clock, self.tell)

    @property
    def end(self) -> int:
        """The confirm offset: consumers see what lies below it."""
        confirmed, stored = self.confirmation.end, self._stored_end()
        return stored if confirmed is None else min(confirmed, stored)

    def appended(self, log_end: int, queues: Iterable[QueueKey]) -> None:
        """These queues have something new that ends here in the log."""
        self._waiting.extend((log_end, key) for key in queues)

    def on_readable(self, listener: Callable[[str, int], None]) -> None:
        """Have `listener` told of each queue in which something new can be read."""
        self._listeners.append(listener)

    def tell(self) -> None:
        """Tell the listeners what has become readable."""
        end = self.end
        ready: dict[QueueKey, None] = {}
        while self._waiting and self._waiting[0][0] <= end:
            ready[self._waiting.popleft()[1]] = None
        for topic, queue_id in ready:
            for listener in self._listeners:
                listener(topic, queue_id)
