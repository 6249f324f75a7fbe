"""The broker's small state: the files' names, and parts of its JSON documents."""

from __future__ import annotations

from typing import Any


def table(document: Any, name: str) -> dict[str, Any]:
    """The table called `name`. Raises KeyError when it is missing, TypeError when one of the two is no table."""
    if not isinstance(document, dict):
        raise TypeError(f"{document!r} is no table")
    found = document[name]
    if not isinstance(found, dict):
        raise TypeError(f"{name} is {found!r}, and no table")
    return found


# The files below config/ in which the broker keeps its small state, by RocketMQ's names where it has them.

CONSUMER_OFFSETS = "consumerOffset.json"
DELAY_OFFSETS = "delayOffset.json"
PRODUCER_SEQUENCES = "producerSequence.json"
QUEUE_LOCKS = "queueLocks.json"
SUBSCRIPTION_GROUPS = "subscriptionGroup.json"
TOPICS = "topics.json"
TRANSACTION_OFFSETS = "transactionOffset.json"
