"""Random histories of consumer groups whose topic, clock, disk and client ids change, as hypothesis makes them."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from elastic_world import KEYS, LATE, QUEUES_MAX, ElasticWorld
from group_histories import MEMBER, STEPS_MAX, GroupHistory
from histories import HistorySweep, executed, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from mq_broker.store.message_store import FlushDiskType

HISTORIES = 100  # of `make test`
RULES = frozenset(
    {
        "send to wait",
        "recall",
        "two joins at once",
        "join with a taken client id",
        "other numbers of queues",
        "topic deleted and made again",
        "step of the wall clock",
        "another share of the disk",
        "histories under ASYNC_FLUSH",
        "histories under SYNC_FLUSH",
    }
)
QUEUE = st.integers(0, QUEUES_MAX - 1)
COUNT = st.integers(1, QUEUES_MAX)
GROUP = st.sampled_from(ElasticWorld.GROUPS)


class ElasticHistory(GroupHistory):
    """One history: what `GroupHistory` does, and more."""

    ran: ClassVar[Counter[str]] = Counter()
    _world: ElasticWorld

    def _begin_first(self) -> None:
        """The flush policy comes first."""

    @initialize(flush=st.sampled_from(FlushDiskType), seed=st.integers(0, 1_000), late=st.booleans())
    def open(self, flush: FlushDiskType, seed: int, late: bool) -> None:
        self._open(ElasticWorld(seed, flush))
        for queue in range(2):
            self._run(self._world.send(queue, 5), "send")
        if late:
            self._run(self._world.join(LATE), "join")
        self.ran[f"histories under {flush.name}"] += 1

    @rule(queue=QUEUE, count=st.integers(1, 6))
    def send_to_any(self, queue: int, count: int) -> None:
        self._run(self._world.send(queue, count), "send")

    @rule(queue=QUEUE, seconds=st.sampled_from([0.5, 4.0, 30.0, 60.0]), key=st.sampled_from(KEYS))
    def send_to_wait(self, queue: int, seconds: float, key: str) -> None:
        self._run(self._world.send_for_a_time(queue, seconds, key), "send to wait")

    @rule(key=st.sampled_from(KEYS))
    def recall(self, key: str) -> None:
        self._run(self._world.recall(key), "recall")

    @rule()
    def join_late(self) -> None:
        self._run(self._world.join(LATE), "join")

    @rule(group=GROUP, gap_s=st.sampled_from([0.0, 0.001, 0.02]))
    def join_together(self, group: str, gap_s: float) -> None:
        self._run(self._world.join(group, 2, gap_s), "two joins at once")

    @precondition(lambda self: self._world.members)
    @rule(member=MEMBER)
    def join_with_a_taken_id(self, member: int) -> None:
        self._run(self._world.join_with_a_taken_id(member), "join with a taken client id")

    @rule(read=COUNT, write=COUNT)
    def resize(self, read: int, write: int) -> None:
        self._run(self._world.resize(read, write), "other numbers of queues")
        self._run(self._world.send(write - 1, 2), "send")

    @rule(seconds=st.sampled_from([0.0, 0.1, 7.0]))
    def renew_topic(self, seconds: float) -> None:
        self._run(self._world.renew_topic(seconds), "topic deleted and made again")

    @rule(seconds=st.sampled_from([-20, -2, 2, 20]))
    def step_wall(self, seconds: int) -> None:
        self._run(self._world.step_wall(seconds), "step of the wall clock")

    @rule(share=st.sampled_from([0.5, 0.85, 0.88, 0.92]))
    def fill(self, share: float) -> None:
        self._run(self._world.fill(share), "another share of the disk")


def run_histories(count: int, seed: int) -> Counter[str]:
    """So many histories from one seed; how often each rule ran. Raises what broke, with the steps that led to it."""
    ElasticHistory.ran = Counter()
    run_machine(ElasticHistory, count, seed, STEPS_MAX)
    return ElasticHistory.ran


def run_sample() -> str:
    """The HISTORIES of `make test`; what was executed, for people. Raises what broke."""
    ran = run_histories(HISTORIES, seed=1)
    never = sorted(RULES - ran.keys())
    if never or ran["histories"] < HISTORIES or ran["messages consumed"] < ran["histories"]:
        raise AssertionError(f"too little has happened to show anything; never: {never}; else: {executed(ran)}")
    return f"elastic histories: {executed(ran)}"


ELASTIC_SWEEP = HistorySweep("elastic", "G14", "elastic histories", run_histories, goal=20_000)
