"""Small states on their way from a master to a slave, as the documents that they are on disk (MISSION H2).

Topics and groups travel. What the others say, a slave finds out by itself:
- what groups have finished has a way of its own, in both directions (progress.py);
- which waiting messages are done stands in the log, behind each of them: a log that begins where the master's does
  has, of every record that it holds, also what became of it, because that was written later. What was done and has left
  the master's log waits nowhere any more; its queues begin behind it;
- which transactions are open is read from the log when the slave becomes a master;
- what producers have numbered is read from the records as they come;
- the next numbers of queues that have no message left are the one thing that neither log nor documents tell: they are
  said once, when a link begins, and count for a queue of which the slave has never had a message;
- locks of queues change hands only with the role of the master (ADR 111). A slave grants none, and its own table says
  that it may lack some (`QueueLocking.begin(lost=True)`).

Invariants: a document is the master's state of the moment in which it was taken, never older than the log that was
sent before it; it may be ahead of that log. Of what it deletes nobody at the slave is given anything, whether the bytes
came before or come yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from mq_broker.core.consumer_offsets import ConsumerOffsets
from mq_broker.core.replication.frames import StateDocument
from mq_broker.core.state_names import SUBSCRIPTION_GROUPS, TOPICS
from mq_broker.core.subscription_groups import SubscriptionGroups
from mq_broker.core.topic_deletions import forget_offsets
from mq_broker.core.topics import QUEUE_COUNT_MAX, TopicTable
from mq_broker.store.json_state import FORMAT_VERSION, decode_document, encode_document
from mq_broker.store.message_store import MessageStore
from mq_broker.store.queue_numbers import Given, QueueKey, encode_numbers, numbers_of
from mq_broker.store.state_files import State

log = logging.getLogger(__name__)

QUEUE_NUMBERS = "queueNumbers.json"
QUEUE_OFFSET_MAX = (1 << 62) - 1


class StatesOut:
    """The master's side of one link. `log_end` is what the documents say that they cover."""

    def __init__(self, store: MessageStore, topics: TopicTable, groups: SubscriptionGroups) -> None:
        self._states: Mapping[str, State] = {TOPICS: topics, SUBSCRIPTION_GROUPS: groups}
        self._store = store
        self._taken: dict[str, int] = {}  # data version by name

    @property
    def is_waiting(self) -> bool:
        """Whether there is a document that the slave has not been sent yet."""
        return any(state.data_version != self._taken.get(name) for name, state in self._states.items())

    def take(self) -> list[StateDocument]:
        """Every document at first, and the numbers of empty queues; then those that have changed."""
        numbers = {} if self._taken else self._numbers_of_empty_queues()
        changed = {name: state for name, state in self._states.items() if state.data_version != self._taken.get(name)}
        self._taken |= {name: state.data_version for name, state in changed.items()}
        log_end = self._store.log_end
        first = [StateDocument(QUEUE_NUMBERS, encode_numbers(numbers))] if numbers else []
        return first + [
            StateDocument(name, encode_document(state.to_json(), log_end)) for name, state in changed.items()
        ]

    def _numbers_of_empty_queues(self) -> dict[QueueKey, Given]:
        return {
            (queue.topic, queue.queue_id): (queue.max_offset, -1)
            for queue in self._store.queues
            if 0 < queue.max_offset == queue.first_offset
        }


class StatesIn:
    """The slave's side, for the life of its broker. `on_change` is called when a document has changed anything."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicTable,
        groups: SubscriptionGroups,
        offsets: ConsumerOffsets,
        on_change: Callable[[], None],
    ) -> None:
        self._store, self._topics, self._groups, self._offsets = store, topics, groups, offsets
        self._on_change = on_change

    def apply(self, document: StateDocument) -> None:
        """Take over what the master says. Raises ValueError with what is wrong; then nothing has changed."""
        take_over = {
            TOPICS: self._take_over_topics,
            SUBSCRIPTION_GROUPS: self._take_over_groups,
            QUEUE_NUMBERS: self._take_over_numbers,
        }.get(document.name)
        if take_over is None:
            raise ValueError(f"{document.name!r} is no state that a slave takes over")
        try:
            has_changed = take_over(_content(document))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{document.name} as the master has it: {error!r}") from error
        if has_changed:
            log.info("%s is the master's now", document.name)
            self._on_change()

    def _take_over_topics(self, content: dict[str, Any]) -> bool:
        has_changed = self._topics.take_over(content)
        self._follow_deletions()  # also when nothing has changed: a crash may have come before it
        return has_changed

    def _follow_deletions(self) -> None:
        """Queues that have no message yet are opened for it, so that nobody is given those that come.

        A master that has lost what it deleted gives the numbers again: then less is hidden than before.
        """
        for topic, queue_id, _ in self._topics.deletions():
            self._store.queues.get_or_open(topic, queue_id)
        for queue in self._store.queues:
            queue.deleted_below = self._topics.deleted_below(queue.topic, queue.queue_id)
        for topic in self._topics.deleted():
            forget_offsets(topic, self._topics, self._offsets)

    def _take_over_groups(self, content: dict[str, Any]) -> bool:
        has_changed = self._groups.take_over(content)
        for group in self._groups.begun_anew():
            self._offsets.forget_before(group)
        return has_changed

    def _take_over_numbers(self, content: dict[str, Any]) -> bool:
        """Of queues that the slave has never had a message of: in the master's log there is none left either."""
        numbers = numbers_of(content)
        for (topic, queue_id), (given, _) in numbers.items():
            if not 0 < given <= QUEUE_OFFSET_MAX or not 0 <= queue_id < QUEUE_COUNT_MAX or not topic:
                raise ValueError(f"queue {queue_id} of {topic!r} cannot have number {given} next")
        for (topic, queue_id), (given, _) in numbers.items():
            queue = self._store.queues.get_or_open(topic, queue_id)
            if queue.max_offset == 0:
                queue.begin_at(given)
                queue.distrust()
        return False


def _content(document: StateDocument) -> dict[str, Any]:
    """Raises ValueError when it is damaged, of a newer format, or of none."""
    content = decode_document(document.content)
    if FORMAT_VERSION not in content:
        raise ValueError("it has no format version")
    return content
