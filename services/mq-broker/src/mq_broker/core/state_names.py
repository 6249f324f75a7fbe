"""The files below config/ in which the broker keeps its small state, by RocketMQ's names where it has them."""

from __future__ import annotations

CONSUMER_OFFSETS = "consumerOffset.json"
DELAY_OFFSETS = "delayOffset.json"
PRODUCER_SEQUENCES = "producerSequence.json"
QUEUE_LOCKS = "queueLocks.json"
SUBSCRIPTION_GROUPS = "subscriptionGroup.json"
TOPICS = "topics.json"
TRANSACTION_OFFSETS = "transactionOffset.json"
