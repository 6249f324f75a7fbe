"""Random histories of messages that wait, as hypothesis makes them."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Coroutine
from typing import Any, ClassVar

from delay_faults import small_numbers
from delay_world import A_DAY_MS, KEYS, LAYOUT, TABLES, DelayWorld
from histories import History, HistorySweep, executed, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from mq_broker.processor.recalling import NewTime
from mq_broker.store.message_store import FlushDiskType

HISTORIES = 150  # of `make test`; `make robustness` goes on
STEPS_MAX = 14
COUNT = st.integers(1, 12)
KEY = st.sampled_from(KEYS)
PADDING = st.sampled_from([0, 0, 300, 1_500])
DELAY_MS = st.sampled_from([0, 1, 40, 150, 1_000, 5_000, 61_000, 3_600_000, 30 * A_DAY_MS])
DELIVER_IN_MS = st.sampled_from([-A_DAY_MS, -1, 0, 1, 90, 1_000, 4_999, 60_000, A_DAY_MS])
NEW_TIME = st.one_of(
    st.none(),
    st.tuples(st.just("delay"), DELAY_MS),
    st.tuples(st.just("time"), DELIVER_IN_MS),
)
SECONDS = st.sampled_from([0.0004, 0.001, 0.05, 0.999, 1.0, 4.0, 11.0, 65.0, 3_600.0, 2 * 86_400.0])
NUMBER = st.integers(0, 1_000)
FLAG = st.booleans()
CALLS = st.integers(1, 14)
REJECTIONS = st.sampled_from([errno.ENOSPC, errno.EIO])


class DelayHistory(History):
    """One history of messages that wait."""

    ran: ClassVar[Counter[str]] = Counter()
    _world: DelayWorld

    @initialize(flush=st.sampled_from(FlushDiskType))
    def open(self, flush: FlushDiskType) -> None:
        world = DelayWorld(flush)
        self._begin(world, world.open())
        self.ran["histories"] += 1
        self.ran[f"histories under {flush.name}"] += 1

    def _run(self, step: Coroutine[Any, Any, None], name: str) -> None:
        self._take(self._world.step(step))
        self.ran[name] += 1

    @rule(count=COUNT, level=st.integers(1, 6), key=KEY, padding=PADDING)
    def send_with_a_level(self, count: int, level: int, key: str, padding: int) -> None:
        self._run(self._world.send(count, level=level, key=key, padding=padding), "send with a level")

    @rule(count=COUNT, delay_ms=DELAY_MS, key=KEY, padding=PADDING)
    def send_with_a_delay(self, count: int, delay_ms: int, key: str, padding: int) -> None:
        self._run(self._world.send(count, delay_ms=delay_ms, key=key, padding=padding), "send with a delay")

    @rule(count=COUNT, deliver_in_ms=DELIVER_IN_MS, key=KEY, padding=PADDING)
    def send_for_a_time(self, count: int, deliver_in_ms: int, key: str, padding: int) -> None:
        self._run(self._world.send(count, deliver_in_ms=deliver_in_ms, key=key, padding=padding), "send for a time")

    @rule(count=COUNT, padding=PADDING)
    def send_plain(self, count: int, padding: int) -> None:
        self._run(self._world.send(count, padding=padding), "send without a delay")

    @rule(which=NUMBER)
    def remove_one(self, which: int) -> None:
        self._run(self._world.recall(self._id(which)), "recall by id")

    @rule(which=NUMBER, delay_ms=DELAY_MS)
    def delay_one(self, which: int, delay_ms: int) -> None:
        self._run(self._world.recall(self._id(which), new_time=NewTime(delay_ms=delay_ms)), "reschedule by id")

    @rule(key=st.sampled_from(KEYS[1:]), new_time=NEW_TIME)
    def recall_key(self, key: str, new_time: tuple[str, int] | None) -> None:
        name = "reschedule by key" if new_time else "recall by key"
        self._run(self._world.recall(key, new_time=self._time(new_time)), name)

    @rule(key=st.sampled_from(KEYS[1:]), which=NUMBER, first=NEW_TIME, second=NEW_TIME)
    def recall_twice(self, key: str, which: int, first: tuple[str, int] | None, second: tuple[str, int] | None) -> None:
        recalls = [(key, self._time(first)), (self._id(which), self._time(second))]
        self._run(self._world.recall_at_once(*recalls), "two recalls at once")

    @rule(which=NUMBER, first=FLAG, new_time=NEW_TIME)
    def recall_while_due(self, which: int, first: bool, new_time: tuple[str, int] | None) -> None:
        step = self._world.recall_while_due(self._id(which), which, first=first, new_time=self._time(new_time))
        self._run(step, "recall in the millisecond of the delivery")

    @rule(seconds=SECONDS)
    def advance(self, seconds: float) -> None:
        self._run(self._world.advance(seconds), "time passes")

    @rule(days=st.sampled_from([-1, 1]))
    def wall_jumps(self, days: int) -> None:
        self._run(self._world.wall_jumps(days), "the wall clock jumps")

    @precondition(lambda self: not self._world.is_rejecting)
    @rule(number=REJECTIONS)
    def reject(self, number: int) -> None:
        self._run(self._world.reject(number), "the disk rejects")

    @precondition(lambda self: self._world.is_rejecting)
    @rule()
    def accept(self) -> None:
        self._run(self._world.accept(), "the disk works again")

    @rule()
    def checkpoint(self) -> None:
        self._run(self._world.checkpoint(), "checkpoint")

    @rule()
    def clean(self) -> None:
        self._run(self._world.clean(), "old files go")

    @rule(seed=NUMBER)
    def damage_timer(self, seed: int) -> None:
        self._run(self._world.damage_timer(seed), "damage to the timer")

    @rule(seed=NUMBER, delay_ms=DELAY_MS)
    def damage_full_timer(self, seed: int, delay_ms: int) -> None:
        for more_ms in (0, 500):
            self._run(self._world.send(10, delay_ms=delay_ms + more_ms), "send with a delay")
        self._run(self._world.damage_timer(seed, everything=True), "damage to the whole timer")

    @rule(clean=FLAG)
    def restart(self, clean: bool) -> None:
        self._run(self._world.restart(clean=clean), "stop and start" if clean else "kill and start")

    @rule(clean=FLAG, table=st.sampled_from(TABLES), level=st.integers(1, 6))
    def change_levels(self, clean: bool, table: str, level: int) -> None:
        self._run(self._world.send(3, level=level), "send with a level")
        self._run(self._world.restart(clean=clean, table=table), "start with perhaps another table")

    @rule(clean=FLAG, seed=st.one_of(st.none(), NUMBER))
    def lose_timer(self, clean: bool, seed: int | None) -> None:
        lost = () if seed is not None else (LAYOUT.timer,)
        self._run(self._world.restart(clean=clean, lost=lost, damage=seed), "start with a lost or damaged timer")

    @rule(clean=FLAG, backup=FLAG)
    def lose_progress(self, clean: bool, backup: bool) -> None:
        lost = [LAYOUT.config / name for name in ("delayOffset.json", "delayOffset.json.bak")]
        self._run(self._world.restart(clean=clean, lost=lost[: 1 + backup]), "start without delayOffset.json")

    @rule(seed=NUMBER)
    def lose_power(self, seed: int) -> None:
        self._run(self._world.lose_power(seed), "power cut")

    @rule(which=NUMBER, calls=CALLS, power=FLAG, again=FLAG, new_time=NEW_TIME, by_key=FLAG)
    def cut_recall(
        self, which: int, calls: int, power: bool, again: bool, new_time: tuple[str, int] | None, by_key: bool
    ) -> None:
        key = KEYS[1] if by_key else self._id(which)
        work = lambda: self._world.recall(key, new_time=self._time(new_time))  # noqa: E731
        name = "crash in a reschedule" if new_time else "crash in a recall"
        self._run(self._world.cut(work, calls, power=power, seed=which, again=again), name)

    @rule(seconds=SECONDS, calls=CALLS, power=FLAG, again=FLAG, seed=NUMBER)
    def cut_delivery(self, seconds: float, calls: int, power: bool, again: bool, seed: int) -> None:
        work = lambda: self._world.advance(seconds)  # noqa: E731
        self._run(self._world.cut(work, calls, power=power, seed=seed, again=again), "crash in a delivery")

    @rule(count=COUNT, delay_ms=DELAY_MS, calls=CALLS, power=FLAG, again=FLAG, seed=NUMBER)
    def cut_send(self, count: int, delay_ms: int, calls: int, power: bool, again: bool, seed: int) -> None:
        work = lambda: self._world.send(count, delay_ms=delay_ms)  # noqa: E731
        self._run(self._world.cut(work, calls, power=power, seed=seed, again=again), "crash in a send")

    @rule(cleans=FLAG, calls=st.integers(1, 40), power=FLAG, again=FLAG, seed=NUMBER)
    def cut_upkeep(self, cleans: bool, calls: int, power: bool, again: bool, seed: int) -> None:
        work = self._world.clean if cleans else self._world.stop
        name = "crash while old files go" if cleans else "crash in a stop"
        self._run(self._world.cut(work, calls, power=power, seed=seed, again=again), name)

    def _id(self, which: int) -> str:
        """Mostly of a message that was sent."""
        return f"m{which % (len(self._world.model.messages) + 1)}"

    def _time(self, new_time: tuple[str, int] | None) -> NewTime | None:
        if new_time is None:
            return None
        kind, ms = new_time
        return self._world.new_time(delay_ms=ms) if kind == "delay" else self._world.new_time(deliver_in_ms=ms)


RULES = frozenset(
    {
        "send with a level",
        "send with a delay",
        "send for a time",
        "send without a delay",
        "recall by id",
        "recall by key",
        "reschedule by id",
        "reschedule by key",
        "two recalls at once",
        "recall in the millisecond of the delivery",
        "time passes",
        "the wall clock jumps",
        "the disk rejects",
        "the disk works again",
        "checkpoint",
        "old files go",
        "damage to the timer",
        "damage to the whole timer",
        "stop and start",
        "kill and start",
        "start with a lost or damaged timer",
        "start without delayOffset.json",
        "power cut",
        "crash in a recall",
        "crash in a reschedule",
        "crash in a delivery",
        "crash in a send",
        "crash in a stop",
        "crash while old files go",
        "REMOVED",
        "RESCHEDULED",
        "ALREADY_DELIVERED",
        "UNKNOWN",
        "deliveries",
        "timer built anew",
        "start with perhaps another table",
        "another table of levels",
    }
)


def run_histories(count: int, seed: int) -> Counter[str]:
    """So many histories from one seed; how often each rule ran. Raises what broke, with the steps that led to it."""
    DelayHistory.ran = Counter()
    with small_numbers():
        run_machine(DelayHistory, count, seed, STEPS_MAX)
    return DelayHistory.ran


def run_sample() -> str:
    """The HISTORIES of `make test`; what was executed, for people. Raises what broke."""
    ran = run_histories(HISTORIES, seed=1)
    never = sorted(name for name in RULES if not ran[name])
    if never or ran["histories"] < HISTORIES or ran["deliveries"] < ran["histories"]:
        raise AssertionError(f"too little has happened to show anything; never: {never}; else: {executed(ran)}")
    return f"messages that wait: {executed(ran)}"


DELAY_SWEEP = HistorySweep("delays", "G20", "histories of messages that wait", run_histories)
