"""The whole life of the messages with a key, as far as this broker's log and tables tell it (issue 5, item 6).

Two steps. Which messages: the index is asked for the key under every topic where a step of a message may stand. What
happened to each: the index is asked for its unique id under those topics, and `core.life` tells what the records mean.

Invariants: what is read from the disk is read away from the event loop, one topic or one message at a time, so that a
client that gives up ends the work; no record's body is kept; what a crash could still take away is not told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.life import DETOUR_TOPICS, LifeEvent, Tables, Trace, by_time, tell_life, trace_of
from mq_broker.core.limits import SEARCH_ENTRIES_MAX
from mq_broker.core.topics import TopicTable, is_group_topic, level_of
from mq_broker.core.transactions import TransactionTable
from mq_broker.processor.querying import QueryError, Querying
from mq_broker.schedule.delay_service import DelayService
from mq_broker.store.message_store import MessageStore
from mqproto.record import Record

LOOK_BYTES_MAX = 64 * 1024 * 1024  # read of one topic for one key, at the most


@dataclass
class Explaining:
    """The processor of explanations."""

    store: MessageStore
    topics: TopicTable
    offsets: ConsumerOffsets
    transactions: TransactionTable
    querying: Querying
    delay: DelayService

    async def explain(self, topic: str, key: str, *, max_messages: int) -> list[LifeEvent]:
        """The events of the newest `max_messages` messages with this key or unique id, in the order of `by_time`.

        Messages of `topic`, or of every topic when it is empty; 0 messages: 32 (MISSION Q1). What the index does not
        have yet, which is the last moment's, is not told. Raises QueryError, OSError.
        """
        if not key:
            raise QueryError("an explanation needs a key or a unique id")
        wanted = self.querying.wanted(max_messages)
        found: list[Trace] = []
        for searched in self._where_it_may_stand([topic] if topic else [config.topic for config in self.topics.all()]):
            found += await self.querying.in_steps(self._first_look(searched, topic, key, wanted))
        events: list[LifeEvent] = []
        for message_id, traces in _newest(found, wanted):
            known = traces
            if message_id:
                places = self._where_it_may_stand(trace.origin_topic for trace in traces)
                known = await self.querying.in_steps(self._traces(places, message_id))
            events += tell_life(known, Tables(self._readers, self.transactions.phase))
        return sorted(events, key=by_time)

    def _where_it_may_stand(self, topics: Iterable[str]) -> list[str]:
        """These topics, the queue's own, and the retry and dead-letter topics of every group."""
        of_groups = [config.topic for config in self.topics.all() if is_group_topic(config.topic)]
        return list(dict.fromkeys([*topics, *DETOUR_TOPICS, *of_groups]))

    def _first_look(self, searched: str, topic: str, key: str, wanted: int) -> Iterator[int | list[Trace]]:
        """Traces of the newest messages with the key that the searched topic has; a search in steps."""
        found: list[Trace] = []
        messages: set[str | int] = set()
        for trace, read_bytes in self._look(searched, key):
            yield read_bytes
            if trace is not None and (not topic or topic in {trace.topic, trace.origin_topic}):
                found.append(trace)
                messages.add(trace.message_id or trace.log_offset)
                if len(messages) == wanted:
                    break
        yield found

    def _traces(self, places: Iterable[str], message_id: str) -> Iterator[int | list[Trace]]:
        """Everything that says something of one message; a search in steps."""
        found: list[Trace] = []
        for place in places:
            for trace, read_bytes in self._look(place, message_id):
                yield read_bytes
                if trace is not None and trace.message_id == message_id:
                    found.append(trace)
        yield found

    def _look(self, searched: str, key: str) -> Iterator[tuple[Trace | None, int]]:
        """Traces with the key that one topic has, newest first, and how many bytes were read for each; may block."""
        looked = 0
        for match, read_bytes in islice(self.querying.matches(searched, key), SEARCH_ENTRIES_MAX):
            yield trace_of(match[0], self._due_ms(match[0])) if match else None, read_bytes
            looked += read_bytes
            if looked > LOOK_BYTES_MAX:
                return

    def _due_ms(self, record: Record) -> int:
        level = level_of(record.topic, record.queue_id)
        return 0 if level is None else self.delay.due_ms(level, record)

    def _readers(self, topic: str, queue_id: int) -> dict[str, Progress | None]:
        """What each group that has an offset in the topic has finished of this queue."""
        return {group: self.offsets.progress(group, topic, queue_id) for group in self.offsets.groups_of(topic)}


def _newest(traces: list[Trace], count: int) -> list[tuple[str, list[Trace]]]:
    """The newest `count` messages, each as its unique id and its traces; one without an id is known by its place."""
    messages: dict[str | int, list[Trace]] = {}
    for trace in sorted(traces, key=lambda trace: trace.log_offset, reverse=True):
        messages.setdefault(trace.message_id or trace.log_offset, []).append(trace)
    return [(of[0].message_id, of) for of in list(messages.values())[:count]]
