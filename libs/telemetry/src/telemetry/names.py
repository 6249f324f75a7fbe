"""Names of spans and attributes: OpenTelemetry's semantic conventions for messaging, as far as they are used."""

from __future__ import annotations

SYSTEM = "messaging.system"
SYSTEM_VALUE = "hourglass"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION_NAME = "messaging.destination.name"
DESTINATION_PARTITION_ID = "messaging.destination.partition.id"
CONSUMER_GROUP_NAME = "messaging.consumer.group.name"
CLIENT_ID = "messaging.client.id"
MESSAGE_ID = "messaging.message.id"
MESSAGE_BODY_SIZE = "messaging.message.body.size"
BATCH_MESSAGE_COUNT = "messaging.batch.message_count"
# The conventions know these from RocketMQ, whose meaning of them the queue shares.
MESSAGE_KEYS = "messaging.rocketmq.message.keys"
MESSAGE_TAG = "messaging.rocketmq.message.tag"
MESSAGE_DELAY_TIME_LEVEL = "messaging.rocketmq.message.delay_time_level"

# Values of OPERATION_TYPE.
OPERATION_SEND = "send"
OPERATION_RECEIVE = "receive"
OPERATION_PROCESS = "process"


def span_name(operation: str, destination: str) -> str:
    """The conventions' `{operation} {destination}`, such as `send order-events`."""
    return f"{operation} {destination}"
