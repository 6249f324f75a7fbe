"""The Python client of the Hourglass queue: asyncio first, with Apache RocketMQ's names in Python spelling.

    async with Producer("shop", "mq://127.0.0.1:9876") as producer:
        await producer.send(Message("orders", b"...", tag="created", keys="order-17"))

The URL says where the name servers are: `mq://host:port;host:port` names them, `mq://` takes them from the environment
variable NAMESRV_ADDR, and `mq+http://host:port/path` and `mq+dns://name:port` look them up, again every two minutes.
Names listed here are the interface of applications. Further ones stand in `mqclient.admin` (operators), `mqclient.sync`
(programs without an event loop), `mqclient.fastapi`, `mqclient.sqlalchemy`, `mqclient.observed` and
`mqclient.producer.idempotent_producer`; everything else is inside.
"""

import warnings
from importlib import import_module
from typing import Any

from mqclient import admin
from mqclient.admin import Admin
from mqclient.config import ClientConfig, ConsumerConfig, ProducerConfig
from mqclient.consumer.listener import (
    ConsumeConcurrentlyContext,
    ConsumeFromWhere,
    ConsumeMessageContext,
    ConsumeMessageHook,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    MessageListenerConcurrently,
    MessageListenerOrderly,
    MessageModel,
)
from mqclient.consumer.pull_consumer import PullConsumer
from mqclient.consumer.pulling import MessageSelector, PulledFrame
from mqclient.consumer.push_consumer import PushConsumer
from mqclient.consumer.rebalance import (
    AllocateMachineRoomNearby,
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    AllocateMessageQueueByConfig,
    AllocateMessageQueueByMachineRoom,
    AllocateMessageQueueConsistentHash,
    AllocateMessageQueueStrategy,
)
from mqclient.errors import (
    BrokerRejectedError,
    BrokerUnavailableError,
    BrokerUnreachableError,
    CheckUnansweredError,
    ConnectionLostError,
    EarlierSendFailedError,
    IllegalArgumentError,
    IllegalGroupError,
    IllegalStateError,
    LocalTransactionRolledBackError,
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
from mqclient.message import (
    BatchSendResult,
    LocalTransactionState,
    Message,
    MessageExt,
    MessageQueue,
    SendResult,
    SendStatus,
    TransactionSendResult,
)
from mqclient.name_servers import BrokerQueues, TopicRoute
from mqclient.producer.attempts import CommunicationMode, MessageType, SendMessageContext, SendMessageHook
from mqclient.producer.producer import Producer, SendCallback
from mqclient.producer.sender import (
    MessageBatchSplitter,
    MessageQueueSelector,
    SelectMessageQueueByHash,
    SelectMessageQueueByRandom,
)
from mqclient.producer.transaction_producer import TransactionListener, TransactionProducer
from mqclient.recall import RecalledMessage, RecallOutcome, RecallResult
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
    "BatchSendResult",
    "BrokerQueues",
    "BrokerRejectedError",
    "BrokerUnavailableError",
    "BrokerUnreachableError",
    "CheckUnansweredError",
    "ClientConfig",
    "CommunicationMode",
    "ConnectionLostError",
    "ConsumeConcurrentlyContext",
    "ConsumeFromWhere",
    "ConsumeMessageContext",
    "ConsumeMessageHook",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeStatus",
    "ConsumerConfig",
    "EarlierSendFailedError",
    "IllegalArgumentError",
    "IllegalGroupError",
    "IllegalStateError",
    "LocalTransactionRolledBackError",
    "LocalTransactionState",
    "MQClientError",
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
    "OutcomeUnknownError",
    "Producer",
    "ProducerConfig",
    "PullConsumer",
    "PullStatus",
    "PulledFrame",
    "PushConsumer",
    "RecallOutcome",
    "RecallResult",
    "RecalledMessage",
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
    "TooManyRequestsError",
    "TopicRoute",
    "TransactionListener",
    "TransactionNotBegunError",
    "TransactionProducer",
    "TransactionSendResult",
    "TransactionTombstonedError",
    "UnknownTransportError",
    "UnreadableBodyError",
]

# Names that stood here before, with their places; they go with the next version.
_MOVED = {
    "BrokerRefusedError": ("mqclient.errors", "BrokerUnavailableError"),
    "MachineRoomResolver": ("mqclient.consumer.rebalance", "MachineRoomResolver"),
    "NumberedMessage": ("mqclient.producer.idempotent_producer", "SequencedMessage"),
    "NumberedProducer": ("mqclient.producer.idempotent_producer", "IdempotentProducer"),
    "StoredMessage": ("mqclient.producer.idempotent_producer", "StoredMessage"),
}


def __getattr__(name: str) -> Any:
    if name not in _MOVED and name not in admin.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, current = _MOVED.get(name, ("mqclient.admin", name))
    warnings.warn(f"mqclient.{name} is {module}.{current} now", DeprecationWarning, stacklevel=2)
    return getattr(import_module(module), current)
