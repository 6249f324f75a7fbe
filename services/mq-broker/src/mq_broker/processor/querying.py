"""Queries of messages by key, place and time, and of a message's whole life (mechanisms Q1, M2, M8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from mq_broker.core.batches import message_keys
from mq_broker.core.consumer_offsets import ConsumerOffsets, Progress
from mq_broker.core.life import DETOUR_TOPICS, LifeEvent, Tables, Trace, by_time, tell_life, trace_of
from mq_broker.core.limits import SEARCH_ENTRIES_MAX, SEARCH_STEP_BYTES_MAX, SEARCH_STEP_ENTRIES_MAX
from mq_broker.core.pulling import PULL_BYTES_MAX
from mq_broker.core.topics import TopicTable, is_group_topic, level_of
from mq_broker.core.transactions import TransactionTable
from mq_broker.schedule.delay_service import DelayService
from mq_broker.store.message_store import MessageStore
from mqproto.record import Record

QUERY_MESSAGES_DEFAULT = 32  # RocketMQ's defaultQueryMaxNum
QUERY_MESSAGES_MAX = 2_000  # mechanism Q1
TIMESTAMP_MS_MAX = (1 << 63) - 1

FoundT = TypeVar("FoundT")


class QueryError(ValueError):
    """A query that is not allowed; the message says what is."""


@dataclass(frozen=True, slots=True)
class Found:
    """Records that were found, newest first, and whether there may be more of them."""

    records: list[bytes]
    truncated: bool


@dataclass
class Querying:
    """The processor of queries.

    Invariant: a search by key goes in steps of bounded work, after each of which other clients' reads have their turn.
    """

    store: MessageStore

    async def by_key(
        self, topic: str, key: str, *, max_messages: int, begin_ms: int, end_ms: int, client: str = ""
    ) -> Found:
        """Messages of the topic with this key or unique id, stored from `begin_ms` to `end_ms` (0: no end).

        Visits at most `SEARCH_ENTRIES_MAX` entries of the index. Raises QueryError, OSError.
        """
        if not topic or not key:
            raise QueryError("a query names a topic and a key")
        wanted = self.wanted(max_messages)
        found = self.matches(topic, key, begin_ms, end_ms or TIMESTAMP_MS_MAX)

        def take() -> Iterator[int | Found]:
            records: list[bytes] = []
            taken = 0
            for visited, (match, read_bytes) in enumerate(found):
                if visited == SEARCH_ENTRIES_MAX or (
                    match is not None
                    and (len(records) == wanted or (records and taken + len(match[1]) > PULL_BYTES_MAX))
                ):
                    yield Found(records, truncated=True)
                    return
                if match is not None:
                    records.append(match[1])
                    taken += len(match[1])
                yield read_bytes
            yield Found(records, truncated=False)

        return await self.in_steps(take(), client)

    async def in_steps(self, search: Iterator[int | FoundT], client: str = "") -> FoundT:
        """The result of `search`, which yields the bytes that it has read at each entry of the index, the result last.

        Runs in steps, in turn with the reads of other clients. Raises what the search raises.
        """

        def step() -> FoundT | None:
            read_bytes = 0
            for _ in range(SEARCH_STEP_ENTRIES_MAX):
                one = next(search)
                if not isinstance(one, int):
                    return one
                read_bytes += one
                if read_bytes >= SEARCH_STEP_BYTES_MAX:
                    break
            return None

        with self.store.cold_reads.several():
            while (result := await self.store.cold_reads.read(step, client)) is None:
                pass
            return result

    def wanted(self, max_messages: int) -> int:
        """How many messages a query may find when it asks for this many. Raises QueryError."""
        if not 0 <= max_messages <= QUERY_MESSAGES_MAX:
            raise QueryError(f"{max_messages} messages; allowed are 1 to {QUERY_MESSAGES_MAX}, and 0 for the default")
        if not self.store.options.index_enabled:
            raise QueryError("this broker keeps no index (messageIndexEnable=false)")
        return max_messages or QUERY_MESSAGES_DEFAULT

    def matches(
        self, topic: str, key: str, begin_ms: int = 0, end_ms: int = TIMESTAMP_MS_MAX
    ) -> Iterator[tuple[tuple[Record, bytes] | None, int]]:
        """Each entry of the index that may match: the record with its bytes if it does, and how many bytes were read.

        Newest first; may block.
        """
        seen: set[int] = set()
        for log_offset in self.store.index.find(topic, key, begin_ms, end_ms):
            if log_offset is None or log_offset in seen:
                yield None, 0
                continue
            seen.add(log_offset)
            proven = self.store.reader.read_proven(log_offset)
            is_wanted = proven is not None and self._is_wanted(proven[0], topic, key, begin_ms, end_ms)
            yield proven if is_wanted else None, len(proven[1]) if proven else 0

    def _is_wanted(self, record: Record, topic: str, key: str, begin_ms: int, end_ms: int) -> bool:
        return (
            record.topic == topic
            and begin_ms <= record.store_timestamp_ms <= end_ms
            and key in message_keys(record)
            and record.log_offset + record.size <= self.store.readable_end
            and not self.store.is_deleted(record)
        )

    async def by_log_offset(self, log_offset: int) -> bytes:
        """The record at this place. Raises ValueError when there is none, or when it is damaged; OSError."""
        record, data = await self.store.reader.read_whole(log_offset)
        if not self.store.is_message(record):
            raise ValueError(f"no message begins at offset {log_offset}")
        if record.log_offset + record.size > self.store.readable_end:
            raise ValueError(f"the message at offset {log_offset} is not on disk yet")
        return data

    async def stored_at_ms(self, topic: str, queue_id: int, offset: int) -> int:
        """When the message at this offset of the queue was stored; 0 when it is not there. Raises OSError."""
        queue = self.store.queue(topic, queue_id)
        if queue is None or not queue.min_offset <= offset < queue.max_offset:
            return 0

        def look() -> int:
            record = self.store.reader.message(queue, offset)
            return record.store_timestamp_ms if record else 0

        return await self.store.cold_reads.read(look)

    async def about_bytes(self, topic: str, queue_id: int, begin: int, end: int) -> int:
        """What the queue's messages from `begin` up to `end` take of the log, of many by samples. Raises OSError."""
        queue = self.store.queue(topic, queue_id)
        if queue is None or begin >= end:
            return 0
        return await self.store.cold_reads.read(lambda: queue.about_bytes(begin, end))

    async def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """The first offset of the queue whose message was stored at or after `timestamp_ms`; its end if all are older.

        Raises OSError.
        """
        queue = self.store.queue(topic, queue_id)
        if queue is None:
            return 0

        def search() -> int:
            low, high = queue.min_offset, queue.max_offset
            while low < high:
                middle = (low + high) // 2
                record = next((r for at in range(middle, high) if (r := self.store.reader.message(queue, at))), None)
                if record is None or record.store_timestamp_ms >= timestamp_ms:
                    high = middle
                else:
                    low = record.queue_offset + 1
            return low

        return await self.store.cold_reads.read(search)


LOOK_BYTES_MAX = 64 * 1024 * 1024  # read of one topic for one key, at the most


@dataclass
class Explaining:
    """The whole life of the messages with a key, as far as this broker's log and tables tell it.

    The processor of explanations.

    Two steps. Which messages: the index is asked for the key under every topic where a step of a message may stand.
    What happened to each: the index is asked for its unique id under those topics, and `core.life` tells what the
    records mean.

    Invariants: what is read from the disk is read away from the event loop, one topic or one message at a time, so that
    a client that gives up ends the work; no record's body is kept; what a crash could still take away is not told.
    """

    store: MessageStore
    topics: TopicTable
    offsets: ConsumerOffsets
    transactions: TransactionTable
    querying: Querying
    delay: DelayService

    async def explain(self, topic: str, key: str, *, max_messages: int) -> list[LifeEvent]:
        """The events of the newest `max_messages` messages with this key or unique id, in the order of `by_time`.

        Messages of `topic`, or of every topic when it is empty; 0 messages: 32 (mechanism Q1). What the index does not
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
