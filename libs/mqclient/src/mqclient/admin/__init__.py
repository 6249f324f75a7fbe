"""What an operator asks of the cluster: topics, groups, brokers, messages (MISSION N11, L13, Q1).

One module a subject; `Admin` puts them together.
"""

from mqclient.admin.admin import Admin
from mqclient.admin.backup_description import BackedUpFile, BackupDescription
from mqclient.admin.brokers import BrokerStatus, ClusterBroker, DelayLevelStatus, StoreStatus
from mqclient.admin.consumers import (
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    ProcessQueueInfo,
    SubscriptionData,
)
from mqclient.admin.dead_letter import DeadLetter, DeadLetterFilter, DeadLetterState, ReplayTarget
from mqclient.admin.dead_letter_marks import DeadLetterMark
from mqclient.admin.groups import ConsumeStats, OffsetChange, QueueConsumeStats, SubscriptionGroupConfig
from mqclient.admin.ha_status import BrokerRole, Epoch, HaAnswer, HaStatus, ReplicaStatus
from mqclient.admin.life import LifeEvent
from mqclient.admin.switching import MasterSwitch
from mqclient.admin.topics import QueueStats, TopicConfig
from mqclient.admin.transactions import TransactionDetails, TransactionInfo, TransactionList
from mqclient.consumer.consume_service import TopicConsumeStats
from mqclient.consumer.pulling import PullResult
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
