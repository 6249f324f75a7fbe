"""The limit of each text and repeated field of the requests of BrokerService, AdminService and ReplicationService.

Calls with one request are checked by `limited`, on the class of the service; the streams check each request when they
read it: Poll, Session and Replicate as a whole, Produce its number of batches here and each batch as
`processor/producing.py` comes to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any, TypeVar

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from mq_broker.core import limits
from mq_broker.rpc.replication_conversions import DATA_BYTES_MAX, EPOCHS_MAX, TEXT_MAX
from mqproto.grpc_options import FRAME_BYTES_MAX, FieldLimit, FieldLimitError, FieldLimits

ServiceT = TypeVar("ServiceT", bound=type)

_NAME, _TEXT, _KEY = limits.NAME_CHARACTERS_MAX, limits.TEXT_CHARACTERS_MAX, limits.KEY_CHARACTERS_MAX
_EXPRESSION = FieldLimit(limits.EXPRESSION_CHARACTERS_MAX, limits.EXPRESSIONS_CHARACTERS_MAX)
_GROUPS, _QUEUES = limits.GROUPS_PER_REQUEST_MAX, limits.QUEUES_PER_REQUEST_MAX

REQUEST_LIMITS = FieldLimits(
    {
        "BecomeSlaveRequest.master_ha_address": _TEXT,
        "CommandAnswer.remark": _TEXT,
        "ConsumeDirectlyResult.remark": _TEXT,
        "ConsumeMessageDirectlyRequest.client_id": _TEXT,
        "ConsumeMessageDirectlyRequest.group": _NAME,
        "ConsumerData.group": _NAME,
        "ConsumerData.subscriptions": limits.SUBSCRIPTIONS_PER_REQUEST_MAX,
        "ConsumerRunningInfo.client_id": _TEXT,
        "ConsumerRunningInfo.queues": _QUEUES,
        "ConsumerRunningInfo.stats": limits.SUBSCRIPTIONS_PER_REQUEST_MAX,
        "ConsumerSendBackRequest.client_id": _TEXT,
        "ConsumerSendBackRequest.failure": limits.FAILURE_CHARACTERS_MAX,
        "ConsumerSendBackRequest.group": _NAME,
        "DecideTransactionRequest.transaction_id": _KEY,
        "DeleteSubscriptionGroupRequest.group": _NAME,
        "DeleteTopicRequest.topic": _NAME,
        "EndTransactionRequest.producer_group": _NAME,
        "EndTransactionRequest.transaction_id": _KEY,
        "ExplainMessageRequest.key": _KEY,
        "ExplainMessageRequest.topic": _NAME,
        "GetConsumeStatsRequest.group": _NAME,
        "GetConsumeStatsRequest.topic": _NAME,
        "GetConsumerConnectionsRequest.group": _NAME,
        "GetConsumerListRequest.group": _NAME,
        "GetConsumerRunningInfoRequest.client_id": _TEXT,
        "GetConsumerRunningInfoRequest.group": _NAME,
        "GetTopicStatsRequest.topic": _NAME,
        "ListTopicConfigsRequest.after": _NAME,
        "GetTransactionRequest.transaction_id": _KEY,
        "GroupProgress.client_id": _TEXT,
        "GroupProgress.group": _NAME,
        "GroupProgress.queues": _QUEUES,
        "Heartbeat.client_id": _TEXT,
        "Heartbeat.incarnation": _TEXT,
        "Heartbeat.consumers": _GROUPS,
        "Heartbeat.producers": _GROUPS,
        "ListTransactionsRequest.producer_group": _NAME,
        "LockQueuesRequest.client_id": _TEXT,
        "LockQueuesRequest.group": _NAME,
        "LockQueuesRequest.incarnation": _TEXT,
        "LockQueuesRequest.queues": _QUEUES,
        "PollRequest.progress": _GROUPS,
        "ProcessQueueInfo.topic": _NAME,
        "ProduceRequest.batches": limits.FRAME_BATCHES_MAX,
        "ProducerData.group": _NAME,
        "Progress.entries": DATA_BYTES_MAX,
        "PromoteRequest.queue_locks": limits.QUEUE_LOCKS_BYTES_MAX,
        "PullRequest.expression": limits.EXPRESSION_CHARACTERS_MAX,
        "PullRequest.expression_type": _NAME,
        "PullRequest.group": _NAME,
        "PullRequest.topic": _NAME,
        "QueryConsumerOffsetRequest.group": _NAME,
        "QueryMessageRequest.key": _KEY,
        "QueryMessageRequest.topic": _NAME,
        "QueueOffset.topic": _NAME,
        "QueueProgress.finished": limits.RANGES_PER_REQUEST_MAX,
        "QueueProgress.topic": _NAME,
        "QueueRef.topic": _NAME,
        "RecallMessageRequest.key": _KEY,
        "RecallMessageRequest.topic": _NAME,
        "RecordBatch.records": FRAME_BYTES_MAX,  # gRPC itself takes no larger message
        "RecordBatch.topic": _NAME,
        "ReplicaHello.address": TEXT_MAX,
        "ReplicaHello.broker_name": TEXT_MAX,
        "ReplicaHello.cluster_name": TEXT_MAX,
        "ReplicaHello.history": EPOCHS_MAX,
        "ReplicaHello.replica_id": TEXT_MAX,
        "ResetConsumerOffsetRequest.group": _NAME,
        "ResetConsumerOffsetRequest.offsets": _QUEUES,
        "ResetConsumerOffsetRequest.topic": _NAME,
        "Subscription.expression": _EXPRESSION,
        "Subscription.expression_type": _NAME,
        "Subscription.topic": _NAME,
        "SubscriptionGroupConfig.group": _NAME,
        "TopicConfig.topic": _NAME,
        "TopicConsumeStats.topic": _NAME,
        "UnlockQueuesRequest.client_id": _TEXT,
        "UnlockQueuesRequest.group": _NAME,
        "UnlockQueuesRequest.incarnation": _TEXT,
        "UnlockQueuesRequest.queues": _QUEUES,
        "UpdateConsumerOffsetRequest.client_id": _TEXT,
        "UpdateConsumerOffsetRequest.group": _NAME,
        "UpdateConsumerOffsetRequest.queues": _QUEUES,
    }
)


def limited(descriptor: ServiceDescriptor) -> Callable[[ServiceT], ServiceT]:
    """Have each call of the service that has one request end with INVALID_ARGUMENT when it is beyond a limit."""

    def decorate(service: ServiceT) -> ServiceT:
        for method in descriptor.methods:
            if not method.client_streaming and method.input_type.fields:
                setattr(service, method.name, _limited(getattr(service, method.name)))
        return service

    return decorate


def _limited(method: Callable[[Any, Any, Any], Awaitable[Any]]) -> Callable[[Any, Any, Any], Awaitable[Any]]:
    @wraps(method)
    async def checked(service: Any, request: Any, context: Any) -> Any:
        try:
            REQUEST_LIMITS.check(request)
        except FieldLimitError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return await method(service, request, context)

    return checked
