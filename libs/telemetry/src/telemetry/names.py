"""Names of spans, attributes and metrics: OpenTelemetry's semantic conventions, and `hourglass.` where they end."""

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
MESSAGE_TYPE = "messaging.rocketmq.message.type"
MESSAGE_DELAY_TIME_LEVEL = "messaging.rocketmq.message.delay_time_level"
MESSAGE_DELIVERY_TIMESTAMP = "messaging.rocketmq.message.delivery_timestamp"  # ms of the Unix epoch
ERROR_TYPE = "error.type"

# What the conventions have no name for.
BROKER_NAME = "hourglass.broker.name"
QUEUE_OFFSET = "hourglass.queue.offset"
RECONSUME_TIMES = "hourglass.message.reconsume_times"
PRODUCER_GROUP = "hourglass.producer.group"
TRANSACTION_ID = "hourglass.transaction.id"
TRANSACTION_STATE = "hourglass.transaction.state"
TRANSACTION_CHECKS = "hourglass.transaction.checks"
SEND_STATUS = "hourglass.send.status"
CONSUME_STATUS = "hourglass.consume.status"
DELAY_LEVEL = "hourglass.delay.level"
DELAY_LATENESS = "hourglass.delay.lateness"  # s
RECALL_OUTCOME = "hourglass.recall.outcome"

# Events.
TRIED_AGAIN = "tried again"

# What the shop's spans are about; an id of orders, of payments.
ORDER_ID = "hourglass.order.id"
PAYMENT_ID = "hourglass.payment.id"
REFUND_ID = "hourglass.refund.id"

# Values of OPERATION_TYPE.
OPERATION_SEND = "send"
OPERATION_RECEIVE = "receive"
OPERATION_PROCESS = "process"
OPERATION_SETTLE = "settle"

# Values of OPERATION_NAME that are none of OPERATION_TYPE, and the first words of spans.
TRANSACTION = "transaction"
COMMIT = "commit"
ROLLBACK = "rollback"
CHECK = "check"
RECALL = "recall"
SEND_BACK = "send back"
HALF = "half"
WAIT = "wait"
RETRY = "retry"
DEAD_LETTER = "dead letter"

# Metrics of clients.
CLIENT_OPERATION_DURATION = "messaging.client.operation.duration"
CLIENT_SENT_MESSAGES = "messaging.client.sent.messages"
CLIENT_CONSUMED_MESSAGES = "messaging.client.consumed.messages"
PROCESS_DURATION = "messaging.process.duration"


def span_name(operation: str, destination: str) -> str:
    """The conventions' `{operation} {destination}`, such as `send order-events`."""
    return f"{operation} {destination}"
