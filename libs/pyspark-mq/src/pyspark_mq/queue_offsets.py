"""Offsets of queues as JSON writes them: {"topic": {"broker": {"queue id": number}}} (MISSION Y1, Y2).

Spark's checkpoint keeps them, users write them into options, and each is a Mapping of MessageQueue inside.

Invariant: equal offsets make equal text, because Spark compares text: topics, brokers and queue ids are sorted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mqclient import MessageQueue
from pyspark_mq.errors import OptionError

Offsets = Mapping[MessageQueue, int]
OffsetsJson = dict[str, dict[str, dict[str, int]]]

EXAMPLE = '{"orders": {"broker-a": {"0": 17, "1": -2}}}'


def to_json(offsets: Offsets) -> OffsetsJson:
    """What `from_json` reads."""
    found: OffsetsJson = {}
    for queue in sorted(offsets):
        brokers = found.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offsets[queue]
    return found


def from_json(tree: Any, what: str) -> dict[MessageQueue, int]:
    """The inverse. `what` is the name of the option, for the error. Raises OptionError."""
    found: dict[MessageQueue, int] = {}
    try:
        for topic, brokers in tree.items():
            for broker, queues in brokers.items():
                for queue_id, number in queues.items():
                    if type(number) is not int or not queue_id.isdecimal():
                        raise TypeError  # noqa: TRY301 - one sentence for every way to be wrong
                    found[MessageQueue(topic, broker, int(queue_id))] = number
    except (AttributeError, TypeError):
        raise OptionError(f"{what} is {json.dumps(tree)}; write it like {EXAMPLE}") from None
    return found


def parse_json(text: str, what: str) -> Any:
    """The JSON of an option. Raises OptionError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"{what} is no JSON ({error}); write it like {EXAMPLE}") from None
