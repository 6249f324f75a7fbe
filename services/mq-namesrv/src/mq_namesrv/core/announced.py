"""The topics that one registration stream has told of, whole or as changes of what it told before.

Invariants: each topic is legal and stands under its own name; the mapping that was given out is never changed again.
"""

from __future__ import annotations

from collections.abc import Iterable

from mq_namesrv.core.registration import RegistrationError, TopicConfig, check_topic_config


class CheckedTopics(dict[str, TopicConfig]):
    """Topics by name, each of which was checked when it was put in."""


class AnnouncedTopics:
    """Of one stream. Call `begin` for each request, then `add` and `remove`, then `topics`."""

    def __init__(self) -> None:
        self._topics = CheckedTopics()
        self._is_given_out = False
        self._names: set[str] = set()  # of the topics of the request that is being read
        self.left_out = 0  # topics for which there was no room, since all topics were told anew

    def begin(self, *, adds: bool) -> None:
        """A request begins, which changes what was told before, or tells all topics anew."""
        self._names = set()
        if not adds:
            self._topics, self._is_given_out, self.left_out = CheckedTopics(), False, 0

    def add(self, configs: Iterable[TopicConfig], room: int) -> None:
        """These are new or have changed; new ones beyond `room` topics are left out. Raises RegistrationError."""
        for config in configs:
            if config.topic in self._names:
                raise RegistrationError(f"the topic {config.topic!r} comes more than once in one registration")
            self._names.add(config.topic)
            check_topic_config(config)
            if config.topic in self._topics or len(self._topics) < room:
                self._own()[config.topic] = config
            else:
                self.left_out += 1

    def remove(self, names: Iterable[str]) -> None:
        """These are gone."""
        for name in names:
            self._own().pop(name, None)

    def topics(self) -> CheckedTopics:
        """All topics as of now."""
        self._is_given_out = True
        return self._topics

    def _own(self) -> CheckedTopics:
        if self._is_given_out:
            self._topics, self._is_given_out = CheckedTopics(self._topics), False
        return self._topics
