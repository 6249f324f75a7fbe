"""All of an operator's calls under one name."""

from __future__ import annotations

from mqclient.admin.backups import BackupAdmin
from mqclient.admin.consumers import ConsumerAdmin
from mqclient.admin.dead_letters import DeadLetterAdmin
from mqclient.admin.groups import QUEUE_END, OffsetChange
from mqclient.admin.life import LifeAdmin
from mqclient.admin.replication import ReplicationAdmin
from mqclient.admin.transactions import TransactionAdmin
from mqclient.admin.waiting_messages import WaitingMessageAdmin
from mqclient.message import MessageQueue


class Admin(
    DeadLetterAdmin, ConsumerAdmin, ReplicationAdmin, LifeAdmin, WaitingMessageAdmin, TransactionAdmin, BackupAdmin
):
    """What an operator asks of the cluster.

    A change goes to every master that a name server knows, or to those of `cluster_name`, or to the broker at
    `broker_address` alone. The brokers are asked one after the other, in the order of their names. The first error ends
    the call; it is the error of the broker that made it, and names those that had done what was asked before. Nothing
    is taken back there: every change can be asked for again.

        async with Admin("mq://127.0.0.1:9876") as admin:
            await admin.update_topic("orders", read_queue_count=8, write_queue_count=8)
    """

    async def preview_reset_by_time(
        self, group: str, topic: str, timestamp_ms: int, *, force: bool = True
    ) -> dict[MessageQueue, OffsetChange]:
        """What `reset_offset_by_time` with the same arguments would change now; nothing is changed. Raises likewise."""
        before = {one.queue: one.consumer_offset for one in (await self.consume_stats(group, topic)).queues}
        changes = {}
        for stats in await self.topic_stats(topic):
            offset = stats.max_offset
            if timestamp_ms != QUEUE_END:
                offset = await self.search_offset(stats.queue, timestamp_ms)
            committed = before.get(stats.queue, -1)
            keeps = not force and 0 <= committed <= offset
            changes[stats.queue] = OffsetChange(committed, committed if keeps else offset)
        return changes
