"""How fast a consumer pulls and consumes, by topic, over the last minute (MISSION L12)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

SLICE_S = 10
SLICES = 6  # together a minute


@dataclass(slots=True)
class Tally:
    """What happened in one slice: calls with their seconds, and messages."""

    pulls: int = 0
    pull_s: float = 0.0
    pulled: int = 0
    consumes: int = 0
    consume_s: float = 0.0
    consumed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class TopicConsumeStats:
    """One topic at one member in the last minute: means in milliseconds, messages a second (MISSION L12).

    `consume_failed_messages` counts since the consumer started.
    """

    topic: str
    pull_rt_ms: float
    pull_tps: float
    consume_rt_ms: float
    consume_ok_tps: float
    consume_failed_tps: float
    consume_failed_messages: int


@dataclass(slots=True)
class _Topic:
    slices: deque[tuple[int, Tally]] = field(default_factory=lambda: deque(maxlen=SLICES))
    failed: int = 0


class ConsumerStats:
    """Of one consumer. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}

    def pulled(self, topic: str, now: float, seconds: float, messages: int) -> None:
        """A poll has brought something; what it took includes the time for which a broker held it."""
        tally = self._tally(topic, now)
        tally.pulls += 1
        tally.pull_s += seconds
        tally.pulled += messages

    def consumed(self, topic: str, now: float, seconds: float, messages: int, *, success: bool) -> None:
        """The listener has answered."""
        tally = self._tally(topic, now)
        tally.consumes += 1
        tally.consume_s += seconds
        if success:
            tally.consumed += messages
        else:
            tally.failed += messages
            self._topics[topic].failed += messages

    def of_last_minute(self, now: float) -> list[TopicConsumeStats]:
        """By topic, sorted."""
        return [self._stats(topic, now) for topic in sorted(self._topics)]

    def _tally(self, topic: str, now: float) -> Tally:
        slices = self._topics.setdefault(topic, _Topic()).slices
        number = int(now // SLICE_S)
        if not slices or slices[-1][0] != number:
            slices.append((number, Tally()))
        return slices[-1][1]

    def _stats(self, topic: str, now: float) -> TopicConsumeStats:
        oldest = int(now // SLICE_S) - SLICES
        tallies = [tally for number, tally in self._topics[topic].slices if number > oldest]
        pulls, consumes = sum(one.pulls for one in tallies), sum(one.consumes for one in tallies)
        minute_s = SLICE_S * SLICES
        return TopicConsumeStats(
            topic,
            pull_rt_ms=1_000 * sum(one.pull_s for one in tallies) / pulls if pulls else 0.0,
            pull_tps=sum(one.pulled for one in tallies) / minute_s,
            consume_rt_ms=1_000 * sum(one.consume_s for one in tallies) / consumes if consumes else 0.0,
            consume_ok_tps=sum(one.consumed for one in tallies) / minute_s,
            consume_failed_tps=sum(one.failed for one in tallies) / minute_s,
            consume_failed_messages=self._topics[topic].failed,
        )
