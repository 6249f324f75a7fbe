"""What an operator asks of the cluster: topics, groups, brokers, messages (MISSION N11, L13, Q1).

One module a subject; `Admin` puts them together.
"""

from mqclient.admin.admin import Admin
from mqclient.admin.brokers import BrokerStatus, ClusterBroker, DelayLevelStatus, StoreStatus
from mqclient.admin.groups import ConsumeStats, OffsetChange, QueueConsumeStats, SubscriptionGroupConfig
from mqclient.admin.life import LifeEvent
from mqclient.admin.messages import PullResult
from mqclient.admin.topics import QueueStats, TopicConfig
from mqproto.codes import LifeEventKind

__all__ = [
    "Admin",
    "BrokerStatus",
    "ClusterBroker",
    "ConsumeStats",
    "DelayLevelStatus",
    "LifeEvent",
    "LifeEventKind",
    "OffsetChange",
    "PullResult",
    "QueueConsumeStats",
    "QueueStats",
    "StoreStatus",
    "SubscriptionGroupConfig",
    "TopicConfig",
]
