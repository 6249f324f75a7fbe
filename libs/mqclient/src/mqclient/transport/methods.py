"""Every remote method that the client calls."""

from __future__ import annotations

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient.transport import Method, RequestT, ResponseT


def _method(request_type: type[RequestT], response_type: type[ResponseT]) -> Method[RequestT, ResponseT]:
    """The method of the request's name, in the one service of the request's file."""
    (service,) = request_type.DESCRIPTOR.file.services_by_name.values()
    name = request_type.DESCRIPTOR.name.removesuffix("Request")
    return Method(f"/{service.full_name}/{name}", request_type, response_type)


QUERY_ROUTE = _method(name_pb.QueryRouteRequest, name_pb.QueryRouteResponse)
LIST_CLUSTERS = _method(name_pb.ListClustersRequest, name_pb.ListClustersResponse)
LIST_TOPICS = _method(name_pb.ListTopicsRequest, name_pb.ListTopicsResponse)

SEND = _method(broker_pb.SendRequest, broker_pb.SendResponse)
PRODUCE = _method(broker_pb.ProduceRequest, broker_pb.ProduceResponse)
POLL = _method(broker_pb.PollRequest, broker_pb.PollResponse)
SESSION = _method(broker_pb.SessionRequest, broker_pb.SessionResponse)
CONSUMER_SEND_BACK = _method(broker_pb.ConsumerSendBackRequest, broker_pb.ConsumerSendBackResponse)
PULL = _method(broker_pb.PullRequest, broker_pb.PullResponse)
GET_CONSUMER_LIST = _method(broker_pb.GetConsumerListRequest, broker_pb.GetConsumerListResponse)
QUERY_CONSUMER_OFFSET = _method(broker_pb.QueryConsumerOffsetRequest, broker_pb.QueryConsumerOffsetResponse)
UPDATE_CONSUMER_OFFSET = _method(broker_pb.UpdateConsumerOffsetRequest, broker_pb.UpdateConsumerOffsetResponse)
LOCK_QUEUES = _method(broker_pb.LockQueuesRequest, broker_pb.LockQueuesResponse)
UNLOCK_QUEUES = _method(broker_pb.UnlockQueuesRequest, broker_pb.UnlockQueuesResponse)
GET_QUEUE_OFFSETS = _method(broker_pb.GetQueueOffsetsRequest, broker_pb.GetQueueOffsetsResponse)
SEARCH_OFFSET = _method(broker_pb.SearchOffsetRequest, broker_pb.SearchOffsetResponse)
QUERY_MESSAGE = _method(broker_pb.QueryMessageRequest, broker_pb.QueryMessageResponse)
VIEW_MESSAGE = _method(broker_pb.ViewMessageRequest, broker_pb.ViewMessageResponse)
END_TRANSACTION = _method(broker_pb.EndTransactionRequest, broker_pb.EndTransactionResponse)
RECALL_MESSAGE = _method(broker_pb.RecallMessageRequest, broker_pb.RecallMessageResponse)

UPDATE_TOPIC = _method(admin_pb.UpdateTopicRequest, admin_pb.UpdateTopicResponse)
DELETE_TOPIC = _method(admin_pb.DeleteTopicRequest, admin_pb.DeleteTopicResponse)
LIST_TOPIC_CONFIGS = _method(admin_pb.ListTopicConfigsRequest, admin_pb.ListTopicConfigsResponse)
GET_TOPIC_STATS = _method(admin_pb.GetTopicStatsRequest, admin_pb.GetTopicStatsResponse)
UPDATE_SUBSCRIPTION_GROUP = _method(admin_pb.UpdateSubscriptionGroupRequest, admin_pb.UpdateSubscriptionGroupResponse)
DELETE_SUBSCRIPTION_GROUP = _method(admin_pb.DeleteSubscriptionGroupRequest, admin_pb.DeleteSubscriptionGroupResponse)
LIST_SUBSCRIPTION_GROUPS = _method(admin_pb.ListSubscriptionGroupsRequest, admin_pb.ListSubscriptionGroupsResponse)
GET_CONSUME_STATS = _method(admin_pb.GetConsumeStatsRequest, admin_pb.GetConsumeStatsResponse)
RESET_CONSUMER_OFFSET = _method(admin_pb.ResetConsumerOffsetRequest, admin_pb.ResetConsumerOffsetResponse)
GET_CONSUMER_CONNECTIONS = _method(admin_pb.GetConsumerConnectionsRequest, admin_pb.GetConsumerConnectionsResponse)
GET_CONSUMER_RUNNING_INFO = _method(admin_pb.GetConsumerRunningInfoRequest, admin_pb.GetConsumerRunningInfoResponse)
CONSUME_MESSAGE_DIRECTLY = _method(admin_pb.ConsumeMessageDirectlyRequest, admin_pb.ConsumeMessageDirectlyResponse)
GET_BROKER_STATUS = _method(admin_pb.GetBrokerStatusRequest, admin_pb.GetBrokerStatusResponse)
GET_BROKER_CONFIG = _method(admin_pb.GetBrokerConfigRequest, admin_pb.GetBrokerConfigResponse)
EXPLAIN_MESSAGE = _method(admin_pb.ExplainMessageRequest, admin_pb.ExplainMessageResponse)
LIST_TRANSACTIONS = _method(admin_pb.ListTransactionsRequest, admin_pb.ListTransactionsResponse)
GET_TRANSACTION = _method(admin_pb.GetTransactionRequest, admin_pb.GetTransactionResponse)
DECIDE_TRANSACTION = _method(admin_pb.DecideTransactionRequest, admin_pb.DecideTransactionResponse)
BACKUP_STORE = _method(admin_pb.BackupStoreRequest, admin_pb.BackupStoreResponse)
GET_REPLICA_STATUS = _method(admin_pb.GetReplicaStatusRequest, admin_pb.GetReplicaStatusResponse)
STEP_DOWN = _method(admin_pb.StepDownRequest, admin_pb.StepDownResponse)
PROMOTE = _method(admin_pb.PromoteRequest, admin_pb.PromoteResponse)
BECOME_SLAVE = _method(admin_pb.BecomeSlaveRequest, admin_pb.BecomeSlaveResponse)
