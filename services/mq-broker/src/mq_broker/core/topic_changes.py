"""What a name server has to be told of this broker's topics, in parts that one request has room for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mq_broker.core.limits import REGISTRATION_TOPICS_MAX
from mq_broker.core.topics import TopicConfig

Topics = Mapping[str, TopicConfig]


@dataclass(frozen=True, slots=True)
class TopicsPart:
    """One request's part: with `adds` it changes what was told before; the last one of a registration is complete."""

    changed: list[TopicConfig]
    deleted: list[str]
    adds: bool
    more_follows: bool


def parts(told: Topics | None, topics: Topics) -> Iterator[TopicsPart]:
    """How `told` becomes `topics`; None: nothing was told yet. At least one part, which may be empty."""
    if told is None:
        changed, deleted = sorted(topics), []
    else:
        changed = [name for name, config in topics.items() if _differs(told.get(name), config)]
        deleted = [name for name in told if name not in topics]
    size = REGISTRATION_TOPICS_MAX
    count = max(1, -(-len(changed) // size), -(-len(deleted) // size))
    for number in range(count):
        here = slice(number * size, (number + 1) * size)
        yield TopicsPart(
            [topics[name] for name in changed[here]], deleted[here], told is not None or number > 0, number < count - 1
        )


def _differs(before: TopicConfig | None, now: TopicConfig) -> bool:
    return before is not now and before != now  # most are the same object
