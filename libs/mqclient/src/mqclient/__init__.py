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
    BrokerStatus,
    ClusterBroker,
    ConsumeStats,
    DelayLevelStatus,
    LifeEvent,
    LifeEventKind,
    OffsetChange,
    PullResult,
    QueueConsumeStats,
    QueueStats,
    StoreStatus,
    SubscriptionGroupConfig,
    TopicConfig,
)
from mqclient.client_config import ClientConfig
from mqclient.consumer.allocate import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy
from mqclient.consumer.listener import ConsumeFromWhere, ConsumeStatus, MessageListenerConcurrently
from mqclient.consumer.push_consumer import PushConsumer
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
from mqclient.producer.producer import Producer
from mqclient.producer.producer_config import ProducerConfig
from mqclient.producer.queue_choice import MessageQueueSelector
from mqclient.producer.retry import CommunicationMode
from mqclient.producer.selectors import SelectMessageQueueByHash, SelectMessageQueueByRandom
from mqclient.producer.send_callback import SendCallback
from mqclient.producer.send_result import BatchSendResult, SendResult, SendStatus, TransactionSendResult
from mqclient.producer.transaction_listener import (
    LocalTransactionRolledBackError,
    LocalTransactionState,
    TransactionListener,
)
from mqclient.producer.transaction_producer import TransactionProducer
from mqclient.route import BrokerQueues, TopicRoute

__all__ = [
    "Admin",
    "AllocateMessageQueueAveragely",
    "AllocateMessageQueueStrategy",
    "BatchSendResult",
    "BrokerQueues",
    "BrokerRefusedError",
    "BrokerRejectedError",
    "BrokerStatus",
    "BrokerUnreachableError",
    "ClientConfig",
    "ClusterBroker",
    "CommunicationMode",
    "ConnectionLostError",
    "ConsumeFromWhere",
    "ConsumeStats",
    "ConsumeStatus",
    "DelayLevelStatus",
    "EarlierSendFailedError",
    "IllegalArgumentError",
    "IllegalGroupError",
    "IllegalStateError",
    "LifeEvent",
    "LifeEventKind",
    "LocalTransactionRolledBackError",
    "LocalTransactionState",
    "MQClientError",
    "Message",
    "MessageBatchSplitter",
    "MessageExt",
    "MessageListenerConcurrently",
    "MessageQueue",
    "MessageQueueSelector",
    "MessageRejectedError",
    "MessageType",
    "NoRouteError",
    "NotSentError",
    "OffsetChange",
    "OutcomeUnknownError",
    "Producer",
    "ProducerConfig",
    "PullResult",
    "PushConsumer",
    "QueueConsumeStats",
    "QueueStats",
    "RejectedError",
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
    "SubscriptionGroupConfig",
    "TooManyRequestsError",
    "TopicConfig",
    "TopicRoute",
    "TransactionListener",
    "TransactionNotBegunError",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionTombstonedError",
    "UnknownTransportError",
    "UnreadableBodyError",
]
