"""What operators change, as the processors of their requests make it: refused with a code and a sentence.

Invariant: what returns is as durable as an acknowledged message, and what is refused has changed nothing, but for
FLUSH_SLAVE_TIMEOUT: that is made here, and may yet be lost with this master.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.limits import RefusedError
from mq_broker.processor.refusals import code_of
from mq_broker.store.changes import Change, Changes
from mq_broker.store.errors import StoreError

Moved = tuple[str, int, Progress]  # topic, queue id, where a group goes on


@dataclass
class Changing:
    """The processors' way to change something."""

    changes: Changes
    offsets: ConsumerOffsets
    time: BrokerTime

    async def make(self, change: Change | None = None, made: Callable[[], None] = lambda: None) -> None:
        """Make the change, or have those before it acknowledged: what is as it should be may not be everywhere yet.

        Raises RefusedError: with FLUSH_SLAVE_TIMEOUT it is made, and may yet be lost with this master.
        """
        try:
            if change is None:
                await self.changes.wait_acknowledged()
            else:
                await self.changes.make(change, self.time.stamp_ms(), made)
        except StoreError as error:
            raise RefusedError(code_of(error), str(error)) from error

    async def reset(
        self,
        group: str,
        offsets: Sequence[tuple[str, int, int]],
        made: Callable[[Sequence[Moved]], None] = lambda _moved: None,
    ) -> None:
        """Let the group go on exactly at (topic, queue id, offset); `made` hears of it at once. Raises RefusedError."""
        moved = [
            (topic, queue_id, self.offsets.after_reset(group, topic, queue_id, offset))
            for topic, queue_id, offset in offsets
        ]
        resets = tuple((group, *one) for one in moved)
        await self.make(Change(resets=resets) if moved else None, lambda: made(moved))
