"""The Python client of the Hourglass queue: asyncio first, with Apache RocketMQ's names in Python spelling.

    async with Producer("shop", "mq://127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"...", tag="created", keys="order-17"))

The URL says where the name servers are: `mq://host:port;host:port` names them, `mq://` takes them from the environment
variable NAMESRV_ADDR, and `mq+http://host:port/path` and `mq+dns://name:port` look them up, again every two minutes.
Names listed here are the interface, with those of mqclient.sync for programs without an event loop; everything else is
inside.
"""

from mqclient.admin import (
    Admin,
    BackupDescription,
    BrokerRole,
    BrokerStatus,
    ClusterBroker,
    ConsumeDirectlyResult,
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    ConsumeStats,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterMark,
    DeadLetterState,
    DelayLevelStatus,
    Epoch,
    HaAnswer,
    HaStatus,
    LifeEvent,
    LifeEventKind,
    MasterSwitch,
    OffsetChange,
    ProcessQueueInfo,
    PullResult,
    QueueConsumeStats,
    QueueStats,
    ReplayTarget,
    ReplicaStatus,
    StoreStatus,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConsumeStats,
    TransactionDetails,
    TransactionInfo,
    TransactionList,
    TransactionPhase,
)
from mqclient.client_config import ClientConfig
from mqclient.consumer.allocate import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
    MachineRoomResolver,
)
from mqclient.consumer.consumer_config import ConsumerConfig
from mqclient.consumer.hooks import ConsumeMessageContext, ConsumeMessageHook
from mqclient.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageModel,
)
from mqclient.consumer.pull_consumer import PullConsumer
from mqclient.consumer.pulling import PulledFrame
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.consumer.subscription import MessageSelector
from mqclient.errors import (
    BrokerRefusedError,
    BrokerRejectedError,
    BrokerUnreachableError,
    ConnectionLostError,
    EarlierSendFailedError,
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    MessageRejectedError,
    MQClientError,
    NoRouteError,
    NotSentError,
    OutcomeUnknownError,
    RejectedError,
    RequestTimeoutError,
    RetryableError,
    TooManyRequestsError,
    TransactionNotBegunError,
    TransactionTombstonedError,
    UnknownTransportError,
    UnreadableBodyError,
)
from mqclient.lifecycle import ServiceState
from mqclient.message import Message
from mqclient.message_ext import MessageExt
from mqclient.message_queue import MessageQueue
from mqclient.producer.batch_splitter import MessageBatchSplitter
from mqclient.producer.hooks import MessageType, SendMessageContext, SendMessageHook
from mqclient.producer.numbered_producer import NumberedMessage, NumberedProducer, StoredMessage
from mqclient.producer.producer import Producer
from mqclient.producer.producer_config import ProducerConfig
from mqclient.producer.queue_choice import MessageQueueSelector
from mqclient.producer.retry import CommunicationMode
from mqclient.producer.selectors import SelectMessageQueueByHash, SelectMessageQueueByRandom
from mqclient.producer.send_callback import SendCallback
from mqclient.producer.send_result import BatchSendResult, SendResult, SendStatus, TransactionSendResult
from mqclient.producer.transaction_listener import (
    CheckUnansweredError,
    LocalTransactionRolledBackError,
    LocalTransactionState,
    TransactionListener,
)
from mqclient.producer.transaction_producer import TransactionProducer
from mqclient.recall import RecalledMessage, RecallOutcome, RecallResult
from mqclient.route import BrokerQueues, TopicRoute
from mqproto.codes import PullStatus

__all__ = [
    "Admin",
    "AllocateMachineRoomNearby",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueAveragelyByCircle",
    "AllocateMessageQueueByConfig",
    "AllocateMessageQueueByMachineRoom",
    "AllocateMessageQueueConsistentHash",
    "AllocateMessageQueueStrategy",
    "BackupDescription",
    "BatchSendResult",
    "BrokerQueues",
    "BrokerRefusedError",
    "BrokerRejectedError",
    "BrokerRole",
    "BrokerStatus",
    "BrokerUnreachableError",
    "CheckUnansweredError",
    "ClientConfig",
    "ClusterBroker",
    "CommunicationMode",
    "ConnectionLostError",
    "ConsumeConcurrentlyContext",
    "ConsumeDirectlyResult",
    "ConsumeFromWhere",
    "ConsumeMessageContext",
    "ConsumeMessageHook",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeResult",
    "ConsumeStats",
    "ConsumeStatus",
    "ConsumerConfig",
    "ConsumerConnection",
    "ConsumerData",
    "ConsumerRunningInfo",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterMark",
    "DeadLetterState",
    "DelayLevelStatus",
    "EarlierSendFailedError",
    "Epoch",
    "HaAnswer",
    "HaStatus",
    "IllegalArgumentError",
    "IllegalGroupError",
    "IllegalStateError",
    "LifeEvent",
    "LifeEventKind",
    "LocalTransactionRolledBackError",
    "LocalTransactionState",
    "MQClientError",
    "MachineRoomResolver",
    "MasterSwitch",
    "Message",
    "MessageBatchSplitter",
    "MessageExt",
    "MessageListenerConcurrently",
    "MessageListenerOrderly",
    "MessageModel",
    "MessageQueue",
    "MessageQueueSelector",
    "MessageRejectedError",
    "MessageSelector",
    "MessageType",
    "NoRouteError",
    "NotSentError",
    "NumberedMessage",
    "NumberedProducer",
    "OffsetChange",
    "OutcomeUnknownError",
    "ProcessQueueInfo",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullResult",
    "PullStatus",
    "PulledFrame",
    "PushConsumer",
    "QueueConsumeStats",
    "QueueStats",
    "RecallOutcome",
    "RecallResult",
    "RecalledMessage",
    "RejectedError",
    "ReplayTarget",
    "ReplicaStatus",
    "RequestTimeoutError",
    "RetryableError",
    "SelectMessageQueueByHash",
    "SelectMessageQueueByRandom",
    "SendCallback",
    "SendMessageContext",
    "SendMessageHook",
    "SendResult",
    "SendStatus",
    "ServiceState",
    "StoreStatus",
    "StoredMessage",
    "SubscriptionData",
    "SubscriptionGroupConfig",
    "TooManyRequestsError",
    "TopicConfig",
    "TopicConsumeStats",
    "TopicRoute",
    "TransactionDetails",
    "TransactionInfo",
    "TransactionList",
    "TransactionListener",
    "TransactionNotBegunError",
    "TransactionPhase",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionTombstonedError",
    "UnknownTransportError",
    "UnreadableBodyError",
]
