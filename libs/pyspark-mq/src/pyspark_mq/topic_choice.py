"""Which topics and queues a read is about: a list, a pattern, or single queues."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mqclient import MessageQueue
from mqproto.names import SYSTEM_TOPICS


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """Exactly one of the first three is there. A pattern takes the queue's own topics only with `with_system_topics`:
    they hold what waits, and what was rolled back.
    """

    topics: tuple[str, ...] = ()
    pattern: str = ""
    queues: frozenset[MessageQueue] = frozenset()
    with_system_topics: bool = False

    @property
    def named_topics(self) -> tuple[str, ...]:
        """Those that have to exist; none of a pattern, which matches what there is."""
        return self.topics or tuple(sorted({queue.topic for queue in self.queues}))

    def topics_of(self, existing: Iterable[str]) -> tuple[str, ...]:
        """The topics to read, sorted, of those that exist; a pattern has to match the whole name."""
        if not self.pattern:
            return tuple(sorted(set(self.named_topics) & set(existing)))
        allowed = existing if self.with_system_topics else set(existing) - SYSTEM_TOPICS
        return tuple(sorted(topic for topic in allowed if re.fullmatch(self.pattern, topic)))

    def takes(self, queue: MessageQueue) -> bool:
        """Whether this queue of a chosen topic is read."""
        return not self.queues or queue in self.queues
