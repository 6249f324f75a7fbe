"""Recalls and reschedules of waiting messages (mechanism D7).

The index finds the waiting records of a key. What becomes of each is decided in one step of the event loop with the
write that says so, as a delivery is: so a message is either removed or delivered. An answer is given when what it says
is as durable as an acknowledged message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Container, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import chain, islice
from typing import TypeVar

from mq_broker.core.batches import Batch, runs
from mq_broker.core.broker_time import BrokerTime
from mq_broker.core.delays import DelayProgress
from mq_broker.core.limits import RECALL_ENTRIES_MAX, RejectedError
from mq_broker.core.rewrite import Position, position_text, recalled_batch, schedule_position, waiting_copy
from mq_broker.core.topics import level_of
from mq_broker.processor.querying import QUERY_MESSAGES_MAX, Querying
from mq_broker.processor.topic_administration import code_of, require_master
from mq_broker.store.errors import NotReplicatedError, StoreError
from mq_broker.store.message_store import MessageStore
from mqproto.codes import RecallOutcome, ResponseCode
from mqproto.names import RECALLED_TOPIC, WAITING_TOPICS
from mqproto.properties import DELAY_MS_MAX, REAL_TOPIC, UNIQ_KEY, decode_properties
from mqproto.record import Record

FoundT = TypeVar("FoundT")

RECALL_MESSAGES_MAX = QUERY_MESSAGES_MAX


@dataclass(frozen=True, slots=True)
class NewTime:
    """When a message is to be delivered instead: at `deliver_ms` since 1970, or `delay_ms` from now."""

    deliver_ms: int | None = None
    delay_ms: int | None = None

    def due_ms(self, now_ms: int) -> int:
        """The due time by the clock that it follows, which shows `now_ms`; it is not before that.

        Raises RejectedError when it is too far away or makes no sense.
        """
        due_ms = now_ms + self.delay_ms if self.delay_ms is not None else self.deliver_ms
        if due_ms is None or due_ms < 0 or (self.delay_ms is not None and self.delay_ms < 0):
            raise _illegal("a new time is milliseconds from now, or since 1970, 0 or more")
        if due_ms - now_ms > DELAY_MS_MAX:
            raise _illegal(f"due in {due_ms - now_ms:,} ms; at most {DELAY_MS_MAX:,} (40 days) are allowed")
        return max(now_ms, due_ms)


@dataclass(frozen=True, slots=True)
class Recalled:
    """The outcome for one message; `due_ms` is 0 unless it was rescheduled."""

    message_id: str
    outcome: RecallOutcome
    due_ms: int = 0


@dataclass(frozen=True, slots=True)
class RecallAnswer:
    """The outcomes for the messages with the key, the newest first, and whether one request was not enough for them."""

    messages: list[Recalled]
    truncated: bool


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A waiting record with the key, and what has to be written to take it back."""

    message_id: str
    position: Position
    source: Position | None  # of the waiting record that this one stands for since, if it does
    log_offset: int
    note: Batch


@dataclass(frozen=True, slots=True)
class _End:
    """A record that has ended a wait: a delivered message, or the note of a recall."""

    message_id: str
    source: Position


@dataclass
class _Turns:
    """Of the recalls of one key: how many there are, and the lock of the one at work."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


@dataclass
class Recalling:
    """The processor of recalls."""

    store: MessageStore
    querying: Querying
    progress: DelayProgress
    time: BrokerTime
    _at_work: dict[tuple[str, str], _Turns] = field(default_factory=dict, init=False)  # by topic and key

    async def recall(self, topic: str, key: str, new_time: NewTime | None = None) -> RecallAnswer:
        """Take back the messages of the topic that have the key and wait, or have them wait for `new_time`.

        No messages: none with the key waits or has waited here. Asking again changes nothing more, but for the new
        time. Raises RejectedError or OSError; then some of it may have happened.
        """
        require_master(self.store)
        if not topic or not key:
            raise _illegal("a recall names a topic and a key")
        if not self.store.keeps_index:
            raise _illegal("this broker keeps no index (messageIndexEnable=false), and finds no message by its key")
        if new_time is not None:
            new_time.due_ms(self._now_ms(new_time, self.time.now_ms()))
        try:
            async with self._turn(topic, key):  # one recall of a key sees all that another one has done
                return await self._recall(topic, key, new_time)
        except NotReplicatedError as error:
            raise RejectedError(ResponseCode.SYSTEM_BUSY, str(error)) from error
        except StoreError as error:
            raise RejectedError(code_of(error), str(error)) from error
        except ValueError as error:  # a waiting record that is damaged, or has just been deleted
            raise RejectedError(ResponseCode.SYSTEM_ERROR, str(error)) from error

    @asynccontextmanager
    async def _turn(self, topic: str, key: str) -> AsyncIterator[None]:
        """The block has the key for itself; recalls of other keys go on meanwhile."""
        turns = self._at_work.setdefault((topic, key), _Turns())
        turns.count += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.count -= 1
            if not turns.count:
                del self._at_work[topic, key]

    async def _recall(self, topic: str, key: str, new_time: NewTime | None) -> RecallAnswer:
        told: dict[str, Recalled] = {}
        begun_at = self.store.log_end
        unexplained: set[Position] = set()
        while True:
            waiting, truncated = await self._waiting(topic, key)
            if truncated and new_time is not None and not told:
                most = f"{RECALL_MESSAGES_MAX:,}"
                raise _illegal(f"more than {most} waiting messages have the key; one request reschedules {most}")
            last = _last_of_each(waiting)
            asked_for = [one for one in last if one.message_id not in told]
            # What was carried over meanwhile counts, what was sent meanwhile does not.
            open_ = [one for one in asked_for if one.source is not None or one.log_offset < begun_at]
            taken = [one for one in open_ if not self.progress.is_done(*one.position)]
            if taken:
                for recalled in await (self._reschedule(taken, new_time) if new_time else self._remove(taken)):
                    told[recalled.message_id] = recalled
                if truncated:
                    await self.store.wait_acknowledged()
                    return RecallAnswer(list(told.values()), truncated=True)
                continue
            ends = await self._ends(topic, key, {one.position for one in open_})
            removed = {end.source for end in ends[RECALLED_TOPIC]}
            delivered = {end.source for end in ends[topic]}
            # A wait that is done without an end goes on elsewhere: a recall by another key of the message, or the
            # cleaning, has written it again since the search. When a further search finds no such record, its end has
            # left the log.
            before, unexplained = unexplained, {one.position for one in open_} - removed - delivered
            if unexplained <= before:
                break
        for one in open_:
            outcome = RecallOutcome.REMOVED if one.position in removed else RecallOutcome.ALREADY_DELIVERED
            told[one.message_id] = Recalled(one.message_id, outcome)
        known = {one.message_id for one in waiting}
        for searched, outcome in ((RECALLED_TOPIC, RecallOutcome.REMOVED), (topic, RecallOutcome.ALREADY_DELIVERED)):
            for end in ends[searched]:  # of messages whose waiting records have left the log
                if end.message_id not in known and end.message_id not in told:
                    told[end.message_id] = Recalled(end.message_id, outcome)
        return RecallAnswer(list(told.values()), truncated=False)

    async def _remove(self, taken: Sequence[_Waiting]) -> list[Recalled]:
        for run in runs(taken, self.store.run_bytes_max, lambda one: one.note):
            self.store.put([one.note for one in run], self.time.stamp_ms())
            for one in run:
                self.progress.done(*one.position)
        return [Recalled(one.message_id, RecallOutcome.REMOVED) for one in taken]

    async def _reschedule(self, taken: Sequence[_Waiting], new_time: NewTime) -> list[Recalled]:
        rescheduled = []
        for one in taken:
            record = await self.store.reader.read_record(one.log_offset)
            if not self.progress.is_done(*one.position):
                store_ms = self.time.stamp_ms()
                due_ms = new_time.due_ms(self._now_ms(new_time, store_ms))
                copy = waiting_copy(record, one.position, due_ms, by_wall_clock=new_time.delay_ms is None)
                self.store.put([copy], store_ms)
                self.progress.done(*one.position)
                rescheduled.append(Recalled(one.message_id, RecallOutcome.RESCHEDULED, due_ms))
        return rescheduled

    def _now_ms(self, new_time: NewTime, broker_ms: int) -> int:
        """The time by the clock that the new time follows."""
        return broker_ms if new_time.delay_ms is not None else broker_ms - self.time.ahead_of_wall_ms

    async def _waiting(self, topic: str, key: str) -> tuple[list[_Waiting], bool]:
        """Waiting records of the topic with the key, the newest first; whether more wait than one request takes.

        Of those that are done only the newest are told.
        """

        def look() -> Iterator[int | tuple[list[_Waiting], bool]]:
            open_: list[_Waiting] = []
            done: list[tuple[int, _Waiting]] = []  # a heap by the place in the log
            matches = chain.from_iterable(self.querying.matches(searched, key) for searched in WAITING_TOPICS)
            for match, read_bytes in _limited(matches):
                yield read_bytes
                if match is None:
                    continue
                record, _ = match
                properties = decode_properties(record.properties)
                level = level_of(record.topic, record.queue_id)
                if properties.get(REAL_TOPIC) != topic or level is None:
                    continue
                position = (level, record.queue_offset)
                id_ = properties.get(UNIQ_KEY) or position_text(position)
                note = recalled_batch(record, position)
                one = _Waiting(id_, position, schedule_position(record), record.log_offset, note)
                if not self.progress.is_done(*position):
                    if len(open_) == RECALL_MESSAGES_MAX:
                        yield open_, True
                        return
                    open_.append(one)
                elif len(done) < RECALL_MESSAGES_MAX:
                    heappush(done, (one.log_offset, one))
                else:
                    heappushpop(done, (one.log_offset, one))
            yield [*open_, *(one for _, one in done)], False

        found, truncated = await self._look(look())
        return sorted(found, key=lambda one: one.log_offset, reverse=True), truncated

    async def _ends(self, topic: str, key: str, asked_for: Container[Position]) -> dict[str, list[_End]]:
        """Recall notes for the topic, and deliveries in it, with the key: the newest, and those of these positions."""

        def look() -> Iterator[int | dict[str, list[_End]]]:
            found: dict[str, list[_End]] = {RECALLED_TOPIC: [], topic: []}
            for searched, ends in found.items():
                for match, read_bytes in _limited(self.querying.matches(searched, key)):
                    yield read_bytes
                    end = end_of(match[0]) if match is not None else None
                    if end is not None and (len(ends) < RECALL_MESSAGES_MAX or end.source in asked_for):
                        ends.append(end)
            yield found

        def end_of(record: Record) -> _End | None:
            source = schedule_position(record)
            properties = decode_properties(record.properties)
            if source is None or properties.get(REAL_TOPIC, topic) != topic:
                return None
            return _End(properties.get(UNIQ_KEY) or position_text(source), source)

        return await self._look(look())

    async def _look(self, look: Iterator[int | FoundT]) -> FoundT:
        """What the index finds of all that was stored until now. Raises RejectedError, StoreError, OSError."""
        await self.store.wait_acknowledged()
        end = self.store.log_end
        await self.store.index.catch_up()
        if self.store.index.indexed_end < end:
            raise RejectedError(ResponseCode.SYSTEM_BUSY, "the index is behind the log; ask again in a moment")
        return await self.querying.in_steps(look)


def _limited(matches: Iterator[FoundT]) -> Iterator[FoundT]:
    """The matches. Raises RejectedError behind `RECALL_ENTRIES_MAX` of them: half of a search decides nothing."""
    yield from islice(matches, RECALL_ENTRIES_MAX)
    if next(matches, None) is not None:
        raise _illegal(f"more than {RECALL_ENTRIES_MAX:,} messages have had the key; recall by a key that fewer have")


def _illegal(sentence: str) -> RejectedError:
    return RejectedError(ResponseCode.MESSAGE_ILLEGAL, sentence)


def _last_of_each(waiting: Sequence[_Waiting]) -> list[_Waiting]:
    """Those that no other one stands for since."""
    replaced = {one.source for one in waiting}
    return [one for one in waiting if one.position not in replaced]
