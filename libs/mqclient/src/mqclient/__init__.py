"""The Python client of the Hourglass queue: asyncio first, with Apache RocketMQ's names in Python spelling.

    async with Producer("shop", "mq://127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"...", tag="created", keys="order-17"))

Names listed here are the interface; everything else is inside.
"""

from mqclient.admin import Admin, BrokerStatus, DelayLevelStatus, StoreStatus
from mqclient.client_config import ClientConfig
from mqclient.consumer.allocate import AllocateMessageQueueAveragely, AllocateMessageQueueStrategy
from mqclient.consumer.listener import ConsumeFromWhere, ConsumeStatus, MessageListenerConcurrently
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.errors import (
    BrokerRefusedError,
    BrokerRejectedError,
    BrokerUnreachableError,
    ConnectionLostError,
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
    TransactionNotBegunError,
    TransactionTombstonedError,
    UnknownTransportError,
)
from mqclient.lifecycle import ServiceState
from mqclient.message import Message
from mqclient.message_ext import MessageExt
from mqclient.message_queue import MessageQueue
from mqclient.producer.producer import Producer
from mqclient.producer.queue_choice import MessageQueueSelector
from mqclient.producer.send_result import SendResult, SendStatus, TransactionSendResult
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
    "BrokerQueues",
    "BrokerRefusedError",
    "BrokerRejectedError",
    "BrokerStatus",
    "BrokerUnreachableError",
    "ClientConfig",
    "ConnectionLostError",
    "ConsumeFromWhere",
    "ConsumeStatus",
    "DelayLevelStatus",
    "IllegalArgumentError",
    "IllegalGroupError",
    "IllegalStateError",
    "LocalTransactionRolledBackError",
    "LocalTransactionState",
    "MQClientError",
    "Message",
    "MessageExt",
    "MessageListenerConcurrently",
    "MessageQueue",
    "MessageQueueSelector",
    "MessageRejectedError",
    "NoRouteError",
    "NotSentError",
    "OutcomeUnknownError",
    "Producer",
    "PushConsumer",
    "RejectedError",
    "RequestTimeoutError",
    "RetryableError",
    "SendResult",
    "SendStatus",
    "ServiceState",
    "StoreStatus",
    "TopicRoute",
    "TransactionListener",
    "TransactionNotBegunError",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionTombstonedError",
    "UnknownTransportError",
]
