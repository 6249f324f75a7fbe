"""Who reads from a slave: those that are so far behind that the master would have to read from its disk (MISSION H3).

Who reads what was written of late gets it from the master's memory. Who is farther behind than the share of the
machine's memory that accessMessageInMemoryMaxRatio says makes the master read old files, and push the new ones out of
its memory with them; so a slave does that instead, until the reader has caught up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mq_broker.core.replication.options import ReplicationOptions
from mq_broker.core.subscription_groups import SubscriptionGroup

MASTER_ID = 0
ALL_BYTES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SlaveReads:
    """`near_bytes` of the log, from its end, are taken to be in memory. `is_slave_there`: whether a slave serves beside
    this broker; who is a slave itself says True.
    """

    enabled: bool
    near_bytes: int
    is_slave_there: Callable[[], bool]

    @classmethod
    def of(cls, options: ReplicationOptions, memory_bytes: int, is_slave_there: Callable[[], bool]) -> SlaveReads:
        """As the configuration says, on a machine with so much memory; 0: nobody knows, and nobody is sent away."""
        near_bytes = memory_bytes * options.access_message_in_memory_max_ratio // 100 if memory_bytes else ALL_BYTES
        return cls(options.slave_read_enable, near_bytes, is_slave_there)

    def suggestion(self, group: SubscriptionGroup, behind_bytes: int) -> int:
        """The id of the broker where a member that is so far behind the log's end should read next."""
        wanted = group.which_broker_when_consume_slowly if behind_bytes > self.near_bytes else group.broker_id
        return wanted if wanted != MASTER_ID and self.enabled and self.is_slave_there() else MASTER_ID


NO_SLAVE = SlaveReads(enabled=True, near_bytes=0, is_slave_there=lambda: False)
