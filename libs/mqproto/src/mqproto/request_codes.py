"""The request code of each native method on RocketMQ's frames: 20,000 to 20,999, where RocketMQ has none (ADR 150).

A method keeps its code for ever, as a field of a message keeps its number: a new one goes behind the others of its
service, and the code of one that is gone is not used again.
"""

from __future__ import annotations

from collections.abc import Mapping

PACKAGE = "hourglass.mq.v1"


def _codes(service: str, first: int, methods: str) -> dict[str, int]:
    return {f"/{PACKAGE}.{service}/{name}": first + number for number, name in enumerate(methods.split())}


# By the method's full path, as gRPC writes it.
REQUEST_CODES: Mapping[str, int] = {
    **_codes("NameService", 20_000, "RegisterBroker UnregisterBroker QueryRoute ListTopics ListClusters"),
    **_codes(
        "BrokerService",
        20_100,
        "Produce Send Poll Pull Session GetConsumerList LockQueues UnlockQueues ConsumerSendBack QueryConsumerOffset"
        " UpdateConsumerOffset GetQueueOffsets SearchOffset QueryMessage ViewMessage EndTransaction RecallMessage",
    ),
    **_codes(
        "AdminService",
        20_200,
        "UpdateTopic DeleteTopic ListTopicConfigs GetTopicStats UpdateSubscriptionGroup DeleteSubscriptionGroup"
        " ListSubscriptionGroups GetConsumeStats ResetConsumerOffset GetConsumerConnections GetConsumerRunningInfo"
        " ConsumeMessageDirectly GetBrokerStatus GetBrokerConfig ExplainMessage ListTransactions GetTransaction"
        " DecideTransaction BackupStore GetReplicaStatus StepDown Promote BecomeSlave",
    ),
    **_codes("ReplicationService", 20_300, "Replicate"),
}
