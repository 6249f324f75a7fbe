"""What must be true of a pair, its groups and its producers, whatever happens to them; excuses are in storm_excuses.py.

- What was acknowledged is consumed by every group, unless it was removed, rolled back, or its loss is excused.
- Nothing comes before it is due, after REMOVED was answered, or when its transaction was rolled back; what its
  transaction has committed comes.
- An orderly group consumes each queue in its order, by one listener at a time.
- A message comes again only after a failure, or for a reason of `Again`; it is stored once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

from storm_excuses import EARLY_S, HANDED_OVER_S, REPORT_S, Again, Disturbance, Loss, LossEvent


class InvariantError(AssertionError):
    """Something that must be true is not."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A promise: where in the log of which generation it stands, and whether it was as strong as the mode has it."""

    at: float
    log_offset: int
    generation: int
    strong: bool


@dataclass
class Run:
    """One call of a listener."""

    member: str
    begun: float
    ended: float | None = None


@dataclass
class Message:
    """One message, from before it is sent. Times are of the right clock, in s; `due_wall_s` is of the broker's."""

    body: bytes
    topic: str
    sent_at: float
    failures: int = 0  # of listeners, in each group
    queue: int = -1  # of an ordered topic
    number: int = 0  # there
    delay_s: float = 0.0
    due_wall_s: float = 0.0
    is_transaction: bool = False
    commits: bool | None = None  # what the local transaction came to
    answer: Answer | None = None
    may_be_removed: bool = False
    removed: Answer | None = None
    owed: Counter[str] = field(default_factory=Counter)  # by group: failures that have still to be made good
    runs: dict[str, list[Run]] = field(default_factory=dict)
    failed: Counter[str] = field(default_factory=Counter)
    consumed: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Group:
    """`strict`: no operator touches its offsets. `tries` None: no dead letters."""

    name: str
    topics: frozenset[str]
    orderly: bool = False
    strict: bool = True
    tries: int | None = None


class StormModel:
    """Of one history."""

    def __init__(self, groups: tuple[Group, ...]) -> None:
        self.groups = {group.name: group for group in groups}
        self.messages: dict[bytes, Message] = {}
        self.losses: list[LossEvent] = []
        self.disturbances: list[Disturbance] = []
        self.walls: list[tuple[float, float]] = [(0.0, 0.0)]  # since when the broker's wall clock was ahead by how much
        self.jumps: list[tuple[float, float]] = []  # when broker time may have gone ahead, by how much
        self.begins: dict[tuple[str, str], float] = {}  # since when a group has to get what is sent to a topic
        self.counts: Counter[str] = Counter()
        self._bodies = itertools.count()
        self._running: dict[tuple[str, int], dict[int, str]] = {}
        self._listeners = itertools.count()
        self._began: dict[int, tuple[Message, str, Run]] = {}
        self._last: dict[tuple[str, int], int] = {}  # ordered: the number up to which all has been consumed
        self._ordered: dict[tuple[str, int], list[Message]] = {}

    # ------------------------------------------------------------------------------------------------ producers

    def message(self, topic: str, now: float, **what: object) -> Message:
        """A new one, which may be stored from now on."""
        body = b"m%d" % next(self._bodies)
        message = Message(body, topic, now, **what)  # type: ignore[arg-type]
        self.messages[body] = message
        if message.queue >= 0:
            line = self._ordered.setdefault((topic, message.queue), [])
            message.number = len(line)
            line.append(message)
        return message

    def answered(self, message: Message, answer: Answer, status: str) -> None:
        """It is stored, says a broker."""
        message.answer = answer
        self.counts[f"sent: {status}"] += 1

    def removed(self, message: Message, answer: Answer) -> None:
        """It is never delivered, says a broker."""
        self.counts["REMOVED"] += 1
        for group, runs in message.runs.items():
            if runs and not self.lost(answer):
                raise InvariantError(f"{message.body!r} was given to {group}, and then a recall answered REMOVED")
        message.removed = answer

    # ------------------------------------------------------------------------------------------------ consumers

    def begun(self, group: str, member: str, body: bytes, now: float) -> int:
        """A listener has got it. Returns the run's number. Raises InvariantError."""
        message = self.messages.get(body)
        if message is None:
            raise InvariantError(f"{group} got {body!r}, which was never sent")
        self._check_wanted(group, message, now)
        runs = message.runs.setdefault(group, [])
        if runs and not message.owed[group]:
            self._check_again(group, member, message, runs[-1], now)
        message.owed[group] = max(0, message.owed[group] - 1)
        run, number = Run(member, now), next(self._listeners)
        runs.append(run)
        self._began[number] = message, group, run
        if self.groups[group].orderly:
            self._check_order(group, message, now)
            running = self._running.setdefault((group, message.queue), {})
            if running:
                raise InvariantError(
                    f"{member} and {sorted(running.values())} of {group} are at queue {message.queue} at once"
                )
            running[number] = member
        return number

    def broken_off(self, number: int, now: float) -> None:
        """The listener's client has died."""
        message, group, run = self._began.pop(number)
        run.ended = now
        message.owed[group] += 1
        self._running.get((group, message.queue), {}).pop(number, None)

    def ended(self, number: int, now: float, *, fails: bool) -> None:
        """The listener has answered."""
        message, group, run = self._began.pop(number)
        run.ended = now
        self._running.get((group, message.queue), {}).pop(number, None)
        if fails:
            message.owed[group] += 1
            message.failed[group] += 1
            self.counts["failures of listeners"] += 1
        else:
            message.consumed[group] += 1
            self.counts["consumed"] += 1

    def _check_wanted(self, group: str, message: Message, now: float) -> None:
        who = f"{group} got {message.body!r} at {now:.3f}"
        if message.is_transaction and message.commits is not True:
            raise InvariantError(f"{who}, whose transaction did not commit: {message.commits}")
        if message.removed is not None and not self.lost(message.removed):
            raise InvariantError(f"{who}, which a recall had removed at {message.removed.at:.3f}")
        if message.delay_s:
            ahead = sum(by for at, by in self.jumps if at >= message.sent_at)
            early = message.sent_at + message.delay_s - now - ahead
            if early > EARLY_S:
                raise InvariantError(f"{who}, {early:.3f} s early: sent at {message.sent_at:.3f}, +{message.delay_s} s")
        if message.due_wall_s and (early := message.due_wall_s - self.wall_shown(message.sent_at, now)) > EARLY_S:
            raise InvariantError(f"{who}, {early:.3f} s before {message.due_wall_s:.3f} of the wall clock")

    def wall_shown(self, since: float, now: float) -> float:
        """The latest that the wall clock that counts has shown meanwhile."""
        ends = [at for at, _ in self.walls[1:]] + [now]
        return max(min(end, now) + ahead for (_, ahead), end in zip(self.walls, ends, strict=True) if end >= since)

    def _check_again(self, group: str, member: str, message: Message, run: Run, now: float) -> None:
        ended = run.ended if run.ended is not None else now
        is_soon = member != run.member and now - ended < HANDED_OVER_S
        unfit = {
            Again.HANDED_OVER: not is_soon,
            Again.SWITCHED: member == run.member and not self._has_gone_over(group, message),
            Again.NOT_SENT_BACK: not message.failed[group],
        }
        why = [one for one in self.disturbances if not unfit.get(one.why) and one.covers(group, ended - REPORT_S, now)]
        if not why:
            what = "is still at it" if run.ended is None else f"finished it at {run.ended:.3f}"
            raise InvariantError(
                f"{member} of {group} got {message.body!r} of {message.topic} again at {now:.3f}; {run.member} {what}"
            )
        self.counts[f"again: {why[-1].why.name}"] += 1

    @staticmethod
    def _has_gone_over(group: str, message: Message) -> bool:
        """Whether one member has sent it back, and another one has got it before its retry."""
        return bool(message.failed[group]) and len({run.member for run in message.runs[group]}) > 1

    def _check_order(self, group: str, message: Message, now: float) -> None:
        line, key = self._ordered[message.topic, message.queue], (group, message.queue)
        last = self._last.get(key, 0)
        while last < message.number and self._is_done(group, line[last]):
            last += 1
        self._last[key] = last
        before = [one for one in line[last : message.number] if not self._is_done(group, one)]
        if missing := [one.body for one in before if not self._is_elsewhere(one, message)]:
            raise InvariantError(f"{group} got {message.body!r} of queue {message.queue} at {now:.3f} before {missing}")

    def _is_elsewhere(self, one: Message, message: Message) -> bool:
        """Whether `message` stands in the lost tail of a master that was replaced, and `one` at a later master."""
        if one.answer is None or message.answer is None or not self.lost(message.answer):
            return False
        return one.answer.generation > message.answer.generation

    def _is_done(self, group: str, message: Message) -> bool:
        """Whether the next one of an ordered queue may come."""
        return bool(message.consumed[group]) or message.answer is None or bool(self.lost(message.answer))

    # --------------------------------------------------------------------------------------------------- events

    def lost(self, answer: Answer) -> list[Loss]:
        """Why what it promised may be gone."""
        return [
            event.why if event.why is not Loss.ASYNC_MASTER or answer.strong else Loss.WEAK_ANSWER
            for event in self.losses
            if event.generation > answer.generation
            and answer.log_offset >= event.log_end
            and answer.at >= event.since
            and not (event.spares_strong and answer.strong)
        ]

    def common_end(self, generation: int, log_end: int) -> int:
        """Up to where a log of `generation` that ends there is also the one of now."""
        return min([log_end, *(event.log_end for event in self.losses if event.generation > generation)])

    def disturbed(self, why: Again, begin: float, end: float | None, *groups: str) -> Disturbance:
        """The groups, or all, may get things again from now on, until `end`."""
        one = Disturbance(why, begin, end, frozenset(groups))
        self.disturbances.append(one)
        return one

    # ------------------------------------------------------------------------------------------------------ end

    def missing(self) -> list[str]:
        """What has still to be consumed."""
        return [
            f"{group.name} has not got {message.body!r} of {message.topic}, sent at {message.sent_at:.3f}"
            for message in self.messages.values()
            if self.is_required(message)
            for group in self.groups.values()
            if message.topic in group.topics
            and message.sent_at >= self.begins.get((group.name, message.topic), 0.0)
            and not self._is_over(group, message)
        ]

    def is_required(self, message: Message) -> bool:
        """Whether it has to come in the end."""
        if message.removed is not None or message.may_be_removed:
            return False
        if message.is_transaction:
            if message.commits is not True:
                return False
            if message.answer is None:  # committed, and its sender died: where its half stands is not known
                return not any(event.at >= message.sent_at for event in self.losses)
        return message.answer is not None and not self.lost(message.answer)

    def _is_over(self, group: Group, message: Message) -> bool:
        if group.tries is not None and message.failures > group.tries:
            return message.failed[group.name] > group.tries  # a dead letter, of which `check_end` asks
        return bool(message.consumed[group.name])

    def check_end(self, stored: Counter[tuple[str, bytes]]) -> None:
        """When nothing happens any more; `stored` says how often each topic of the log holds each body."""
        if missing := self.missing():
            raise InvariantError(f"{len(missing)} missing: {'; '.join(missing[:5])}")
        for (topic, body), count in stored.items():
            if count > 1 and body in self.messages and topic == self.messages[body].topic:
                raise InvariantError(f"{body!r} is stored {count} times in {topic}")
        for group in self.groups.values():
            dead = f"%DLQ%{group.name}"
            for message in self.messages.values():
                hopeless = group.tries is not None and message.failures > group.tries
                if hopeless and group.strict and message.topic in group.topics and self.is_required(message):
                    if not stored[dead, message.body]:
                        raise InvariantError(f"{message.body!r} failed for good, and is not in {dead}")
                    self.counts["dead letters"] += 1
