"""What must be true of messages that wait, whatever happens to them and to their broker.

- Never early: what a consumer gets was put there at its due time in broker time, or later. Later only when the broker
  was away at that time, or the disk rejected writes (up to the next try, 10 s after).
- Exactly once: in a topic every message stands once, whatever happens. A consumer may see one a second time only after
  a power cut that took the delivery because it was not durable (async flush); only such a cut loses a message, and
  only one whose own record was not durable.
- What was answered stays, if what it says was durable when the power went: REMOVED is never visible,
  ALREADY_DELIVERED is, RESCHEDULED comes at the new time. What had no answer yet when the broker died has happened or
  not, but not both.
- Order: messages of one level come as they were stored, and so do those of the timer with the same due time; but what
  was carried over or rescheduled was stored again.

The model keeps, for each message, everything that it may be; what is observed later says which it was. One table of
levels can follow another only if no message then waits behind one that is due later (docs/guides/guarantees.md).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mq_broker.core.delays import DelayLevels
from mq_broker.core.topics import TIMER
from mqproto.codes import RecallOutcome

PLAIN = 0  # stands for a level: the message does not wait
RETRY_MS = 10_000  # mechanism D3


class InvariantError(AssertionError):
    """Something that must be true is not."""


class Waiting(NamedTuple):
    """In the queue of a level, or of the timer."""

    level: int
    store_ms: int
    promised_ms: int
    log_offset: int = -1  # of its record, where that matters
    by_wall: bool = False  # promised by the wall clock, else in broker time


class Removed(NamedTuple):
    """By a recall; the note ends before this place in the log."""

    log_end: int


class Delivered(NamedTuple):
    """It stands in its topic."""

    log_offset: int
    store_ms: int


class Lost(NamedTuple):
    """It was never stored, or not durably."""


State = Waiting | Removed | Delivered | Lost
LOST = Lost()


@dataclass
class Message:
    """One message; `history` has what it may have been since which end of the log, the last one is now."""

    number: int
    queue_id: int
    key: str
    level: int  # that it was sent with; TIMER, PLAIN
    history: list[tuple[int, frozenset[State]]]
    in_order: bool = True  # it waits where it was stored first
    told_delivered: bool = False
    times_seen: int = 0

    @property
    def id(self) -> str:
        return f"m{self.number}"

    @property
    def states(self) -> frozenset[State]:
        return self.history[-1][1]

    def becomes(self, end: int, *states: State) -> None:
        """One of these, by what stands in the log before `end`."""
        self.history.append((end, frozenset(states)))

    def waits(self) -> list[Waiting]:
        return [state for state in self.states if isinstance(state, Waiting)]


@dataclass
class Arrival:
    """What a consumer got."""

    number: int
    log_offset: int
    log_end: int
    store_ms: int


@dataclass
class DelayModel:
    """All messages of one broker."""

    table: DelayLevels
    messages: list[Message] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    ahead_of_wall_ms: int = 0  # broker time
    _excused: list[tuple[int, int]] = field(default_factory=list)  # when deliveries may have been late, and until when
    _last_of_level: dict[int, int] = field(default_factory=dict)
    _last_of_time: dict[int, int] = field(default_factory=dict)

    def due_ms(self, state: Waiting) -> int:
        """By the table of now (mechanism D4)."""
        if state.level in {TIMER, PLAIN} or state.level > self.table.highest:
            return state.promised_ms + self.ahead_of_wall_ms * state.by_wall
        return min(state.promised_ms, state.store_ms + self.table.delay_ms(state.level))

    # ------------------------------------------------------------------------------------------ what is done

    def sent(self, message: Message, waiting: Waiting, end: int, *, answered: bool = True) -> None:
        """Stored, or without an answer perhaps."""
        message.becomes(end, *({waiting} if answered else {waiting, LOST}))

    def known(self, key: str) -> list[Message]:
        """Messages that a recall with this key is about."""
        return [one for one in self.messages if key in {one.id, one.key} - {""} and one.level != PLAIN]

    def recalled(
        self,
        key: str,
        answers: Sequence[tuple[str, RecallOutcome, int]],
        new_due_ms: int | None,
        *,
        begin: int,
        end: int,
        now_ms: int,
        answered: bool = True,
        by_wall: bool = False,
    ) -> None:
        """A recall was answered with id, outcome and due time of each; the log went from `begin` to `end` then."""
        known = {one.id: one for one in self.known(key)}
        outcomes = {id_: (outcome, due_ms) for id_, outcome, due_ms in answers}
        if len(outcomes) < len(answers) or not outcomes.keys() <= known.keys():
            raise InvariantError(f"{key!r} is told of as {answers}, known are {sorted(known)}")
        for id_, message in known.items():
            if id_ in outcomes:
                after = self._outcome(message, *outcomes[id_], new_due_ms, end, now_ms, by_wall)
            else:
                after = {state for state in message.states if _is_out_of_reach(state, begin)}
                if not after:
                    raise InvariantError(f"a recall of {key!r} does not know {message}")
            if answered:
                message.becomes(end, *after)
                self.counts[outcomes[id_][0].name if id_ in outcomes else "UNKNOWN"] += 1
                message.told_delivered |= outcomes.get(id_, (None,))[0] is RecallOutcome.ALREADY_DELIVERED
            else:
                message.becomes(end, *after, *message.states)

    def perhaps_recalled(self, key: str, new_due_ms: int | None, end: int, now_ms: int, *, by_wall: bool) -> None:
        """A recall has failed, or was cut off."""
        for message in self.known(key):
            if message.waits():
                new = Removed(end) if new_due_ms is None else Waiting(TIMER, now_ms, new_due_ms, by_wall=by_wall)
                message.becomes(end, new, *message.states)
                message.in_order = False

    def _outcome(
        self,
        message: Message,
        outcome: RecallOutcome,
        due_ms: int,
        new_due_ms: int | None,
        end: int,
        now_ms: int,
        by_wall: bool,
    ) -> set[State]:
        removed = {state for state in message.states if isinstance(state, Removed)}
        wait = message.waits()
        after: set[State] = set()
        match outcome:
            case RecallOutcome.REMOVED if wait and new_due_ms is None:
                after = {Removed(end)}
            case RecallOutcome.REMOVED:
                after = set(removed)
            case RecallOutcome.RESCHEDULED if wait and due_ms == new_due_ms:
                after = {Waiting(TIMER, now_ms, due_ms, by_wall=by_wall)}
                message.in_order = False
            case RecallOutcome.ALREADY_DELIVERED:
                after = {one for one in message.states if isinstance(one, Delivered)}
                after |= {state for state in wait if self.due_ms(state) <= now_ms}
        if not after:
            raise InvariantError(f"a recall for {new_due_ms} at {now_ms} says {outcome.name} {due_ms} of {message}")
        return after

    def may_be_carried(self) -> None:
        """Files of the log go: what waits in them is stored again, behind what is due at the same time."""
        for message in self.messages:
            message.in_order &= not message.waits()

    def carried(self, log_begin: int, end: int, *, finished: bool = True) -> None:
        """What waited below `log_begin` does so in the timer now; if the round has not `finished`, anything perhaps."""
        for message in self.messages:
            moved = {state for state in message.waits() if not finished or state.log_offset < log_begin}
            if moved:
                there = {
                    state._replace(level=TIMER, log_offset=-1)
                    if state.by_wall
                    else Waiting(TIMER, state.store_ms, self.due_ms(state))
                    for state in moved
                }
                message.becomes(end, *there, *(message.states if not finished else message.states - moved))

    def follows_in_order(self, table: DelayLevels) -> bool:
        """Whether the levels can have this table without a message behind one that is due later."""
        before, self.table = self.table, table
        newest: dict[int, int] = {}
        ordered = True
        for message in self.messages:
            for state in sorted(message.waits()):
                if state.level > PLAIN:
                    ordered &= self.due_ms(state) >= newest.get(state.level, 0)
                    newest[state.level] = max(newest.get(state.level, 0), self.due_ms(state))
        self.table = before
        return ordered

    def cut(self, certain_end: int) -> None:
        """The broker has died; what stands in the log from `certain_end` on may be gone."""
        for message in self.messages:
            certain = [states for end, states in message.history if end <= certain_end][-1:]
            later = [states for end, states in message.history if end > certain_end]
            states = frozenset[State]().union(*(certain or [frozenset({LOST})]), *later)
            message.history = [(0, states)]
            message.told_delivered &= all(isinstance(state, Delivered) for state in states)
            message.in_order &= len(states) == 1
        self._last_of_level.clear()
        self._last_of_time.clear()

    def started(self, table: DelayLevels, now_ms: int) -> None:
        """What came due meanwhile comes now, in the next whole millisecond at the latest."""
        self.table = table
        self._excused = [(now_ms, now_ms + 1)]
        newest_ms = max((state.store_ms for one in self.messages for state in _certain(one)), default=0)
        if now_ms < newest_ms:
            raise InvariantError(f"broker time begins at {now_ms}, and {newest_ms} was written")

    def clocks_differ(self, ahead_of_wall_ms: int, now_ms: int) -> None:
        """Broker time is so far ahead of the wall clock now: what the wall clock has passed comes now."""
        if ahead_of_wall_ms != self.ahead_of_wall_ms:
            self.ahead_of_wall_ms = ahead_of_wall_ms
            self._excused.append((now_ms, now_ms + 1))
            self._last_of_time.clear()

    def rejected(self, begin_ms: int, end_ms: int) -> None:
        """In this time the disk took nothing."""
        self._excused.append((begin_ms, end_ms + RETRY_MS + 1))

    # -------------------------------------------------------------------------------------------- what is seen

    def found_again(self, present: Mapping[int, Sequence[Arrival]], log_begin: int) -> list[Arrival]:
        """All that stands in the topic after a start; returns what is new. Nothing stands there twice."""
        new: list[Arrival] = []
        for message in self.messages:
            places = present.get(message.number, ())
            if len(places) > 1:
                raise InvariantError(f"{message} stands in its topic {len(places)} times: {places}")
            there = [one for one in message.states if isinstance(one, Delivered) and _stands(one, places, log_begin)]
            if there:
                message.history = [(0, frozenset(there))]
                continue
            rest = frozenset(one for one in message.states if not isinstance(one, Delivered))
            if not rest:
                raise InvariantError(f"{message} has left its topic")
            message.history = [(0, rest)]
            new += places
        return sorted(new, key=lambda one: one.log_offset)

    def arrived(self, arrival: Arrival) -> None:
        """A consumer got a message that was not there before."""
        message = self.messages[arrival.number]
        at_ms = arrival.store_ms
        due = [state for state in message.waits() if self.due_ms(state) <= at_ms]
        if not due:
            raise InvariantError(f"{arrival} is early, or once too often: {message}")
        if not any(self.due_ms(state) == at_ms or self._is_excused(self.due_ms(state), at_ms) for state in due):
            raise InvariantError(f"{arrival} is late: {message}")
        if message.in_order:
            self._check_order(message, due[0])
        message.becomes(arrival.log_end, Delivered(arrival.log_offset, at_ms))
        message.times_seen += 1
        self.counts["deliveries" if message.level != PLAIN else "plain messages"] += 1
        self.counts["of these again"] += message.times_seen > 1

    def look(self, now_ms: int, queues: Iterable[tuple[int, int, int | None]]) -> None:
        """After everything has settled: nothing due is missing, and the broker's own numbers are right.

        `queues` has level, waiting messages and next due time of each queue.
        """
        for message in self.messages:
            over = {state for state in message.waits() if self._is_over(state, now_ms)}
            rest = message.states - over
            if not rest or (message.told_delivered and not all(isinstance(one, Delivered) for one in rest)):
                raise InvariantError(f"{message} is due at {now_ms}, and not visible")
            if over:
                message.becomes(message.history[-1][0], *rest)
        for level, waiting, next_due_ms in queues:
            self._check_queue(level, waiting, next_due_ms)

    def _check_queue(self, level: int, waiting: int, next_due_ms: int | None) -> None:
        def is_here(state: State) -> bool:
            return isinstance(state, Waiting) and state.level == level

        here = [message for message in self.messages if any(map(is_here, message.states))]
        certain = [message for message in here if all(map(is_here, message.states))]
        if not len(certain) <= waiting <= len(here):
            raise InvariantError(f"{waiting} wait in {level}; it should be {len(certain)} to {len(here)}: {here}")
        at_the_latest = [max(map(self.due_ms, message.waits())) for message in certain]
        first_ms = min(at_the_latest, default=next_due_ms or 0)
        if waiting and (next_due_ms is None or next_due_ms > first_ms):
            raise InvariantError(f"next due in {level} at {next_due_ms}; it should be {first_ms}: {here}")
        ever = {state for one in self.messages for _, states in one.history for state in states}
        dues = {self.due_ms(state) for state in ever if isinstance(state, Waiting) and state.level == level}
        if waiting and level != TIMER and len(certain) == len(here) and next_due_ms not in dues:
            raise InvariantError(f"next due in {level} at {next_due_ms}; nothing ever was: {here}")

    def _check_order(self, message: Message, state: Waiting) -> None:
        if state.level == PLAIN or (state.level == TIMER and self.ahead_of_wall_ms):
            return
        last, place = (
            (self._last_of_time, self.due_ms(state)) if state.level == TIMER else (self._last_of_level, state.level)
        )
        if last.get(place, -1) > message.number:
            raise InvariantError(f"{last[place]} came before {message}")
        last[place] = message.number

    def _is_excused(self, due_ms: int, at_ms: int) -> bool:
        return any(due_ms <= end and at_ms <= end for _, end in self._excused)

    def _is_over(self, state: Waiting, now_ms: int) -> bool:
        return self.due_ms(state) <= now_ms and not self._is_excused(self.due_ms(state), now_ms)

    @property
    def newest_due_ms(self) -> int:
        """When the last message comes at the latest."""
        return max((self.due_ms(state) for message in self.messages for state in message.waits()), default=0)

    def select(self, wanted: Callable[[Message], bool]) -> list[Message]:
        return [message for message in self.messages if wanted(message)]


def _certain(message: Message) -> Iterable[Waiting | Delivered]:
    return [one for one in message.states if isinstance(one, Waiting | Delivered)] if len(message.states) == 1 else []


def _stands(state: Delivered, places: Sequence[Arrival], log_begin: int) -> bool:
    """Whether the message is where it was delivered, or has left the log from there."""
    return state.log_offset < log_begin if not places else places[0].log_offset == state.log_offset


def _is_out_of_reach(state: State, log_begin: int) -> bool:
    """Whether nothing in the log tells of the message any more."""
    match state:
        case Delivered():
            return state.log_offset < log_begin
        case Removed():
            return state.log_end <= log_begin
        case _:
            return isinstance(state, Lost)
