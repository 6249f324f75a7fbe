"""The operator's interface to the cluster: topics, groups, brokers, messages.

One module a subject; `Admin` puts them together.
"""

from __future__ import annotations

from mqclient.admin.backups import BackedUpFile, BackupAdmin, BackupDescription
from mqclient.admin.brokers import BrokerStatus, ClusterBroker, DelayLevelStatus, LifeAdmin, LifeEvent, StoreStatus
from mqclient.admin.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterMark, DeadLetterState, ReplayTarget
from mqclient.admin.dead_letters import DeadLetterAdmin
from mqclient.admin.groups import (
    QUEUE_END,
    ConsumeDirectlyResult,
    ConsumerAdmin,
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStats,
    OffsetChange,
    ProcessQueueInfo,
    QueueConsumeStats,
    SubscriptionData,
    SubscriptionGroupConfig,
)
from mqclient.admin.messages import (
    TransactionAdmin,
    TransactionDetails,
    TransactionInfo,
    TransactionList,
    WaitingMessageAdmin,
)
from mqclient.admin.replicas import BrokerRole, Epoch, HaAnswer, HaStatus, ReplicaStatus
from mqclient.admin.replication import MasterSwitch, ReplicationAdmin
from mqclient.admin.topics import QueueStats, TopicConfig
from mqclient.consumer.consume_service import TopicConsumeStats
from mqclient.consumer.pulling import PullResult
from mqclient.message import MessageQueue
from mqproto.codes import LifeEventKind, TransactionPhase

__all__ = [
    "Admin",
    "BackedUpFile",
    "BackupDescription",
    "BrokerRole",
    "BrokerStatus",
    "ClusterBroker",
    "ConsumeDirectlyResult",
    "ConsumeResult",
    "ConsumeStats",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerRunningInfo",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterMark",
    "DeadLetterState",
    "DelayLevelStatus",
    "Epoch",
    "HaAnswer",
    "HaStatus",
    "LifeEvent",
    "LifeEventKind",
    "MasterSwitch",
    "OffsetChange",
    "ProcessQueueInfo",
    "PullResult",
    "QueueConsumeStats",
    "QueueStats",
    "ReplayTarget",
    "ReplicaStatus",
    "StoreStatus",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "TopicConfig",
    "TopicConsumeStats",
    "TransactionDetails",
    "TransactionInfo",
    "TransactionList",
    "TransactionPhase",
]


class Admin(
    DeadLetterAdmin, ConsumerAdmin, ReplicationAdmin, LifeAdmin, WaitingMessageAdmin, TransactionAdmin, BackupAdmin
):
    """The operator's interface to the cluster.

    A change goes to every master that a name server knows, or to those of `cluster_name`, or to the broker at
    `broker_address` alone. The brokers are asked one after the other, in the order of their names. The first error ends
    the call; it is the error of the broker that made it, and names those that had done what was asked before. Changes
    are not rolled back there: every change can be repeated.

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
