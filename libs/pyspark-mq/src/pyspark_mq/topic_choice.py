"""Which topics and queues a read is about: a list, a pattern, or single queues."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mqclient import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Exactly one of the three is there."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: frozenset[MessageQueue] = frozenset()

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Those that have to exist; none of a pattern, which matches what there is."""
        return self.topics or tuple(sorted({queue.topic for queue in self.queues}))

    def topics_of(self, existing: Iterable[str]) -> tuple[str, ...]:
        """The topics to read, sorted, of those that exist; a pattern has to match the whole name."""
        if not self.pattern:
            return tuple(sorted(set(self.named_topics) & set(existing)))
        return tuple(sorted(topic for topic in existing if re.fullmatch(self.pattern, topic)))

    def takes(self, queue: MessageQueue) -> bool:
        """Whether this queue of a chosen topic is read."""
        return not self.queues or queue in self.queues
