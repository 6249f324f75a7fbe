"""subscribe, subscribePattern and assign: exactly one of them says what is read."""

from __future__ import annotations

import json
import re

from mqclient import MessageQueue
from mqproto.names import IllegalNameError, check_topic
from pyspark_mq.errors import OptionError
from pyspark_mq.option_values import OptionValues
from pyspark_mq.queue_offsets import parse_json
from pyspark_mq.topic_choice import TopicChoice

CHOICES = ("subscribe", "subscribePattern", "assign")
ASSIGN_EXAMPLE = '{"orders": {"broker-a": [0, 1]}}'


def topic_choice(values: OptionValues) -> TopicChoice:
    """What is set. Raises OptionError."""
    found = [name for name in CHOICES if values.has(name)]
    if len(found) != 1:
        raise OptionError(
            f"{' and '.join(found) or 'nothing'} is set; exactly one of {', '.join(CHOICES)} says what is read"
        )
    if found == ["subscribe"]:
        return TopicChoice(topics=_topics(values.text("subscribe")))
    if found == ["assign"]:
        return TopicChoice(queues=_queues(values.text("assign")))
    pattern = values.text("subscribePattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise OptionError(f"subscribePattern is {pattern!r}, which is no regular expression: {error}") from None
    return TopicChoice(pattern=pattern, with_system_topics=values.boolean("includeSystemTopics", default=False))


def _topics(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        _check_topic("subscribe", name)
    return tuple(sorted(set(names)))


def _queues(text: str) -> frozenset[MessageQueue]:
    tree = parse_json(text, "assign")
    found = set()
    try:
        for topic, brokers in tree.items():
            _check_topic("assign", topic)
            for broker, queue_ids in brokers.items():
                if not queue_ids or any(type(one) is not int or one < 0 for one in queue_ids):
                    raise TypeError  # noqa: TRY301 - one sentence for every way to be wrong
                found |= {MessageQueue(topic, broker, queue_id) for queue_id in queue_ids}
    except (AttributeError, TypeError):
        raise OptionError(f"assign is {json.dumps(tree)}; write it like {ASSIGN_EXAMPLE}") from None
    if not found:
        raise OptionError(f"assign names no queue; write it like {ASSIGN_EXAMPLE}")
    return frozenset(found)


def _check_topic(option: str, topic: str) -> None:
    try:
        check_topic(topic)
    except IllegalNameError as error:
        raise OptionError(f"{option}: {error}") from None
