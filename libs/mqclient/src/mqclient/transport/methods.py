"""Every remote method that the client calls."""

from __future__ import annotations

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from hourglass.mq.v1 import broker_service_pb2 as broker_pb
from hourglass.mq.v1 import name_service_pb2 as name_pb
from mqclient.transport import Method

_NAME, _BROKER, _ADMIN = (f"/hourglass.mq.v1.{service}" for service in ("NameService", "BrokerService", "AdminService"))

QUERY_ROUTE = Method(f"{_NAME}/QueryRoute", name_pb.QueryRouteRequest, name_pb.QueryRouteResponse)
LIST_CLUSTERS = Method(f"{_NAME}/ListClusters", name_pb.ListClustersRequest, name_pb.ListClustersResponse)
LIST_TOPICS = Method(f"{_NAME}/ListTopics", name_pb.ListTopicsRequest, name_pb.ListTopicsResponse)

SEND = Method(f"{_BROKER}/Send", broker_pb.SendRequest, broker_pb.SendResponse)
PRODUCE = Method(f"{_BROKER}/Produce", broker_pb.ProduceRequest, broker_pb.ProduceResponse)
POLL = Method(f"{_BROKER}/Poll", broker_pb.PollRequest, broker_pb.PollResponse)
SESSION = Method(f"{_BROKER}/Session", broker_pb.SessionRequest, broker_pb.SessionResponse)
CONSUMER_SEND_BACK = Method(
    f"{_BROKER}/ConsumerSendBack", broker_pb.ConsumerSendBackRequest, broker_pb.ConsumerSendBackResponse
)
PULL = Method(f"{_BROKER}/Pull", broker_pb.PullRequest, broker_pb.PullResponse)
GET_CONSUMER_LIST = Method(
    f"{_BROKER}/GetConsumerList", broker_pb.GetConsumerListRequest, broker_pb.GetConsumerListResponse
)
QUERY_CONSUMER_OFFSET = Method(
    f"{_BROKER}/QueryConsumerOffset", broker_pb.QueryConsumerOffsetRequest, broker_pb.QueryConsumerOffsetResponse
)
UPDATE_CONSUMER_OFFSET = Method(
    f"{_BROKER}/UpdateConsumerOffset", broker_pb.UpdateConsumerOffsetRequest, broker_pb.UpdateConsumerOffsetResponse
)
LOCK_QUEUES = Method(f"{_BROKER}/LockQueues", broker_pb.LockQueuesRequest, broker_pb.LockQueuesResponse)
UNLOCK_QUEUES = Method(f"{_BROKER}/UnlockQueues", broker_pb.UnlockQueuesRequest, broker_pb.UnlockQueuesResponse)
GET_QUEUE_OFFSETS = Method(
    f"{_BROKER}/GetQueueOffsets", broker_pb.GetQueueOffsetsRequest, broker_pb.GetQueueOffsetsResponse
)
SEARCH_OFFSET = Method(f"{_BROKER}/SearchOffset", broker_pb.SearchOffsetRequest, broker_pb.SearchOffsetResponse)
QUERY_MESSAGE = Method(f"{_BROKER}/QueryMessage", broker_pb.QueryMessageRequest, broker_pb.QueryMessageResponse)
VIEW_MESSAGE = Method(f"{_BROKER}/ViewMessage", broker_pb.ViewMessageRequest, broker_pb.ViewMessageResponse)
END_TRANSACTION = Method(f"{_BROKER}/EndTransaction", broker_pb.EndTransactionRequest, broker_pb.EndTransactionResponse)
RECALL_MESSAGE = Method(f"{_BROKER}/RecallMessage", broker_pb.RecallMessageRequest, broker_pb.RecallMessageResponse)

UPDATE_TOPIC = Method(f"{_ADMIN}/UpdateTopic", admin_pb.UpdateTopicRequest, admin_pb.UpdateTopicResponse)
DELETE_TOPIC = Method(f"{_ADMIN}/DeleteTopic", admin_pb.DeleteTopicRequest, admin_pb.DeleteTopicResponse)
LIST_TOPIC_CONFIGS = Method(
    f"{_ADMIN}/ListTopicConfigs", admin_pb.ListTopicConfigsRequest, admin_pb.ListTopicConfigsResponse
)
GET_TOPIC_STATS = Method(f"{_ADMIN}/GetTopicStats", admin_pb.GetTopicStatsRequest, admin_pb.GetTopicStatsResponse)
UPDATE_SUBSCRIPTION_GROUP = Method(
    f"{_ADMIN}/UpdateSubscriptionGroup",
    admin_pb.UpdateSubscriptionGroupRequest,
    admin_pb.UpdateSubscriptionGroupResponse,
)
DELETE_SUBSCRIPTION_GROUP = Method(
    f"{_ADMIN}/DeleteSubscriptionGroup",
    admin_pb.DeleteSubscriptionGroupRequest,
    admin_pb.DeleteSubscriptionGroupResponse,
)
LIST_SUBSCRIPTION_GROUPS = Method(
    f"{_ADMIN}/ListSubscriptionGroups", admin_pb.ListSubscriptionGroupsRequest, admin_pb.ListSubscriptionGroupsResponse
)
GET_CONSUME_STATS = Method(
    f"{_ADMIN}/GetConsumeStats", admin_pb.GetConsumeStatsRequest, admin_pb.GetConsumeStatsResponse
)
RESET_CONSUMER_OFFSET = Method(
    f"{_ADMIN}/ResetConsumerOffset", admin_pb.ResetConsumerOffsetRequest, admin_pb.ResetConsumerOffsetResponse
)
GET_CONSUMER_CONNECTIONS = Method(
    f"{_ADMIN}/GetConsumerConnections", admin_pb.GetConsumerConnectionsRequest, admin_pb.GetConsumerConnectionsResponse
)
GET_CONSUMER_RUNNING_INFO = Method(
    f"{_ADMIN}/GetConsumerRunningInfo", admin_pb.GetConsumerRunningInfoRequest, admin_pb.GetConsumerRunningInfoResponse
)
CONSUME_MESSAGE_DIRECTLY = Method(
    f"{_ADMIN}/ConsumeMessageDirectly", admin_pb.ConsumeMessageDirectlyRequest, admin_pb.ConsumeMessageDirectlyResponse
)
GET_BROKER_STATUS = Method(
    f"{_ADMIN}/GetBrokerStatus", admin_pb.GetBrokerStatusRequest, admin_pb.GetBrokerStatusResponse
)
GET_BROKER_CONFIG = Method(
    f"{_ADMIN}/GetBrokerConfig", admin_pb.GetBrokerConfigRequest, admin_pb.GetBrokerConfigResponse
)
EXPLAIN_MESSAGE = Method(f"{_ADMIN}/ExplainMessage", admin_pb.ExplainMessageRequest, admin_pb.ExplainMessageResponse)
LIST_TRANSACTIONS = Method(
    f"{_ADMIN}/ListTransactions", admin_pb.ListTransactionsRequest, admin_pb.ListTransactionsResponse
)
GET_TRANSACTION = Method(f"{_ADMIN}/GetTransaction", admin_pb.GetTransactionRequest, admin_pb.GetTransactionResponse)
DECIDE_TRANSACTION = Method(
    f"{_ADMIN}/DecideTransaction", admin_pb.DecideTransactionRequest, admin_pb.DecideTransactionResponse
)
BACKUP_STORE = Method(f"{_ADMIN}/BackupStore", admin_pb.BackupStoreRequest, admin_pb.BackupStoreResponse)
GET_REPLICA_STATUS = Method(
    f"{_ADMIN}/GetReplicaStatus", admin_pb.GetReplicaStatusRequest, admin_pb.GetReplicaStatusResponse
)
STEP_DOWN = Method(f"{_ADMIN}/StepDown", admin_pb.StepDownRequest, admin_pb.StepDownResponse)
PROMOTE = Method(f"{_ADMIN}/Promote", admin_pb.PromoteRequest, admin_pb.PromoteResponse)
BECOME_SLAVE = Method(f"{_ADMIN}/BecomeSlave", admin_pb.BecomeSlaveRequest, admin_pb.BecomeSlaveResponse)
