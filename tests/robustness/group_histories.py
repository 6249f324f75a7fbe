"""Random histories of consumer groups, as hypothesis makes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine
from typing import Any, ClassVar

from group_world import GROUPS, QUEUES, GroupWorld
from histories import History, HistorySweep, executed, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

HISTORIES = 200  # of `make test`; `make robustness` goes on
STEPS_MAX = 14
RULES = frozenset(
    {
        "send",
        "send what fails",
        "send what hangs",
        "release",
        "join",
        "leave",
        "crash of a member",
        "cut of a member's network",
        "mend of the network",
        "break of all connections",
        "kill of the broker",
        "power cut",
        "reset",
        "time passes",
    }
)
QUEUE = st.integers(0, QUEUES - 1)
GROUP = st.sampled_from(GROUPS)
MEMBER = st.integers(0, 5)


class GroupHistory(History):
    """One history of consumer groups."""

    ran: ClassVar[Counter[str]] = Counter()
    _world: GroupWorld

    def __init__(self) -> None:
        super().__init__()
        self.ran["histories"] += 1
        self._begin_first()

    def _begin_first(self) -> None:
        self._open(GroupWorld(seed=1))

    def _open(self, world: GroupWorld) -> None:
        self._begin(world, self._join_all(world))

    @staticmethod
    async def _join_all(world: GroupWorld) -> None:
        await world.open()
        for group in GROUPS:
            await world.join(group)

    def _run(self, step: Coroutine[Any, Any, None], name: str) -> None:
        self.ran[name] += 1
        self._take(self._step(step))

    async def _step(self, step: Coroutine[Any, Any, None]) -> None:
        await step
        self._world.look()

    @rule(queue=QUEUE, count=st.integers(1, 6))
    def send(self, queue: int, count: int) -> None:
        self._run(self._world.send(queue, count), "send")

    @rule(queue=QUEUE, failures=st.integers(1, 2))
    def send_what_fails(self, queue: int, failures: int) -> None:
        self._run(self._world.send(queue, 1, failures), "send what fails")

    @rule(queue=QUEUE)
    def send_what_hangs(self, queue: int) -> None:
        self._run(self._world.send(queue, 1, held=True), "send what hangs")

    @rule()
    def release(self) -> None:
        self._run(self._world.release(), "release")

    @rule(group=GROUP)
    def join(self, group: str) -> None:
        self._run(self._world.join(group), "join")

    @precondition(lambda self: self._world.members)
    @rule(member=MEMBER)
    def leave(self, member: int) -> None:
        self._run(self._world.leave(member), "leave")

    @precondition(lambda self: self._world.members)
    @rule(member=MEMBER)
    def crash(self, member: int) -> None:
        self._run(self._world.crash(member), "crash of a member")

    @precondition(lambda self: self._world.members)
    @rule(member=MEMBER)
    def cut(self, member: int) -> None:
        self._run(self._world.cut(member), "cut of a member's network")

    @precondition(lambda self: any(member.is_cut for member in self._world.members))
    @rule()
    def mend(self) -> None:
        self._run(self._world.mend(), "mend of the network")

    @rule()
    def break_connections(self) -> None:
        self._run(self._world.break_connections(), "break of all connections")

    @rule(power=st.booleans())
    def restart_broker(self, power: bool) -> None:
        self._run(self._world.restart_broker(power=power), "power cut" if power else "kill of the broker")

    @rule(group=GROUP, queue=QUEUE, share=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    def reset(self, group: str, queue: int, share: float) -> None:
        self._run(self._world.reset(group, queue, share), "reset")

    @rule(seconds=st.sampled_from([0.02, 0.4, 3.0, 21.0, 65.0]))
    def advance(self, seconds: float) -> None:
        self._run(self._world.advance(seconds), "time passes")

    def _count(self) -> None:
        self.ran["messages consumed"] += self._world.model.consumptions
        self.ran["of these again"] += self._world.model.duplicates


def run_histories(count: int, seed: int) -> Counter[str]:
    """So many histories from one seed; how often each rule ran. Raises what broke, with the steps that led to it."""
    GroupHistory.ran = Counter()
    run_machine(GroupHistory, count, seed, STEPS_MAX)
    return GroupHistory.ran


def run_sample() -> str:
    """The HISTORIES of `make test`; what was executed, for people. Raises what broke."""
    ran = run_histories(HISTORIES, seed=1)
    if ran["histories"] < HISTORIES or not ran.keys() >= RULES or ran["messages consumed"] < ran["histories"]:
        raise AssertionError(f"too little has happened to show anything: {executed(ran)}")
    return f"consumer groups: {executed(ran)}"


GROUP_SWEEP = HistorySweep("groups", "G18", "histories of consumer groups", run_histories)
