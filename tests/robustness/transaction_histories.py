"""Random histories of transactions, as hypothesis makes them."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

from histories import History, HistorySweep, end_all, executed, run_machine
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from quiet import quiet
from simulation import few_collections, run_simulation
from transaction_database import ShopDatabase
from transaction_gaps import Crash, Gap
from transaction_model import Ending, Plan, Wait
from transaction_world import Departure, Restart, TransactionWorld

from mq_broker.store.message_store import FlushDiskType

HISTORIES = 200  # of `make test`; `make robustness` goes on
STEPS_MAX = 6
WAIT = st.sampled_from([Wait.NONE, Wait.NONE, *Wait])
FLAG = st.booleans()
DOWN_S = st.sampled_from([0.0, 2.0, 30.0])
AWAY_S = st.sampled_from([60.0] * 9 + [3_600.0])
NUMBER = st.integers(0, 5)
CRASHES_OF_CHECK = st.sampled_from([(gap, crash) for gap, crash in product(Gap, Crash) if gap.in_check])
CRASHES_OF_END = st.sampled_from([(gap, crash) for gap, crash in product(Gap, Crash) if gap.in_end])
CRASHES_OF_SENDER = st.sampled_from(
    [(gap, crash) for gap, crash in product(Gap, Crash) if not gap.in_check and not gap.in_end]
)
PLAN = st.builds(Plan, st.sampled_from(Ending), WAIT, FLAG)
TOLD = st.builds(Plan, st.sampled_from([ending for ending in Ending if ending.tells]), WAIT, FLAG)
UNTOLD = st.builds(Plan, st.sampled_from([ending for ending in Ending if not ending.tells]), WAIT, FLAG)
STALLS = [Gap.HALF_ANSWERED, Gap.INSIDE, Gap.LOCAL_OVER]
# What has to happen in every sample; the rest is in the counts that are printed.
RULES = frozenset(
    {
        "crash in a gap",
        "transaction",
        "another attempt for an order",
        "a sender that stands still",
        "a sender that is late",
        "nobody can answer",
        "an operator decides",
        "parked and then committed",
        "parked and then rolled back",
        "join",
        "no member for 1 min",
        "time passes",
    }
)
PAIRS = [*product(Gap, Crash)]
# How a sample crosses every pair: under this flush mode, with local transactions that commit or not, and a client
# that comes back at once or not. Any two of these meet.
PLANS = [
    (FlushDiskType.SYNC_FLUSH, True, True),
    (FlushDiskType.SYNC_FLUSH, False, False),
    (FlushDiskType.ASYNC_FLUSH, True, False),
    (FlushDiskType.ASYNC_FLUSH, False, True),
]


class TransactionHistory(History):
    """One history of transactions. `crossed` counts, over all histories, how often each gap was crossed."""

    ran: ClassVar[Counter[str]] = Counter()
    crossed: ClassVar[Counter[tuple[Gap, Crash]]] = Counter()
    database: ClassVar[ShopDatabase]
    _world: TransactionWorld

    @initialize(flush=st.sampled_from(FlushDiskType), seed=st.integers(1, 1_000_000))
    def open(self, flush: FlushDiskType, seed: int) -> None:
        world = TransactionWorld(self.database, seed, flush)
        self._begin(world, world.open())
        self.ran["histories"] += 1
        self.ran[f"histories under {flush.name}"] += 1

    def _run(self, step: Coroutine[Any, Any, None], name: str) -> None:
        self._take(self._step(step))
        self.ran[name] += 1

    async def _step(self, step: Coroutine[Any, Any, None]) -> None:
        await step
        await self._world.look()

    def _cross(self, where: tuple[Gap, Crash], plan: Plan, down_s: float, silently: bool, comes_back: bool) -> None:
        gap, crash = where
        step = self._world.cross(gap, crash, plan, down_s=down_s, silently=silently, comes_back=comes_back)
        self._run(step, "crash in a gap")
        self.crossed[where] += 1

    @rule(where=CRASHES_OF_SENDER, plan=PLAN, down_s=DOWN_S, silently=FLAG, comes_back=FLAG)
    def cross_sending(
        self, where: tuple[Gap, Crash], plan: Plan, down_s: float, silently: bool, comes_back: bool
    ) -> None:
        self._cross(where, plan, down_s, silently, comes_back)

    @rule(where=CRASHES_OF_END, plan=TOLD, down_s=DOWN_S, silently=FLAG, comes_back=FLAG)
    def cross_ending(
        self, where: tuple[Gap, Crash], plan: Plan, down_s: float, silently: bool, comes_back: bool
    ) -> None:
        self._cross(where, plan, down_s, silently, comes_back)

    @rule(where=CRASHES_OF_CHECK, plan=UNTOLD, down_s=DOWN_S, silently=FLAG, comes_back=FLAG)
    def cross_checking(
        self, where: tuple[Gap, Crash], plan: Plan, down_s: float, silently: bool, comes_back: bool
    ) -> None:
        self._cross(where, plan, down_s, silently, comes_back)

    @rule(first=CRASHES_OF_SENDER | CRASHES_OF_END, second=CRASHES_OF_CHECK, plan=TOLD, silently=FLAG, comes_back=FLAG)
    def cross_twice(
        self, first: tuple[Gap, Crash], second: tuple[Gap, Crash], plan: Plan, silently: bool, comes_back: bool
    ) -> None:
        self._cross(first, plan, 0.0, silently, comes_back)
        self._cross(second, Plan(Ending.COMMITS_AND_SAYS_UNKNOW), 0.0, silently, comes_back)

    @rule(plan=PLAN, order=st.none() | NUMBER)
    def transact(self, plan: Plan, order: int | None) -> None:
        name = "transaction" if order is None else "another attempt for an order"
        self._run(self._world.transact(plan, order), name)

    @rule(gap=st.sampled_from(STALLS), plan=PLAN)
    def stall(self, gap: Gap, plan: Plan) -> None:
        self._run(self._world.stall(gap, plan), "a sender that stands still")

    @rule(plan=PLAN)
    def be_late(self, plan: Plan) -> None:
        self._run(self._world.be_late(plan), "a sender that is late")

    @precondition(lambda self: self._world.stalled)
    @rule()
    def release(self) -> None:
        self._run(self._world.release(), "it goes on")

    @rule(plan=UNTOLD)
    def park(self, plan: Plan) -> None:
        self._run(self._world.park(plan), "nobody can answer")

    @precondition(lambda self: self._world.parked_ids)
    @rule()
    def decide(self) -> None:
        self._run(self._world.decide(), "an operator decides")

    @rule()
    def join(self) -> None:
        self._run(self._world.join(), "join")

    @precondition(lambda self: self._world.clients)
    @rule(client=NUMBER, how=st.sampled_from(Departure))
    def depart(self, client: int, how: Departure) -> None:
        self._run(self._world.depart(client, how), how.value)

    @rule(seconds=AWAY_S)
    def be_away(self, seconds: float) -> None:
        self._run(self._world.be_away(seconds), f"no member for {seconds / 60:.0f} min")

    @rule(how=st.sampled_from(Restart), again=FLAG)
    def restart(self, how: Restart, again: bool) -> None:
        self._run(self._world.restart(how, again=again), how.value)

    @rule(seconds=st.sampled_from([0.1, 3.0, 12.0, 130.0]))
    def advance(self, seconds: float) -> None:
        self._run(self._world.advance(seconds), "time passes")


def run_histories(count: int, seed: int, steps_max: int = STEPS_MAX) -> tuple[Counter[str], Counter[tuple[Gap, Crash]]]:
    """So many histories from one seed: how often each rule ran, and how often each gap was crossed by each crash.

    Raises what broke, with the steps that led to it.
    """
    TransactionHistory.ran, TransactionHistory.crossed = Counter(), Counter()
    with _database() as TransactionHistory.database:
        run_machine(TransactionHistory, count, seed, steps_max)
    return TransactionHistory.ran, TransactionHistory.crossed


def cross_every_gap(flush: FlushDiskType, *, commits: bool, comes_back: bool) -> Counter[tuple[Gap, Crash]]:
    """A history for each pair of gap and crash, in which nothing else happens. Raises what broke."""
    crossed: Counter[tuple[Gap, Crash]] = Counter()
    with quiet(), few_collections(), _database() as database:
        for seed, (gap, crash) in enumerate(PAIRS):
            plan, world = Plan(_ending(gap, commits=commits)), TransactionWorld(database, seed, flush)
            try:
                run_simulation(_cross_one(world, gap, crash, plan, comes_back=comes_back))
            except AssertionError as error:
                error.add_note(f"{gap}, {crash}, {flush}, {commits=}, {comes_back=}")
                raise
            crossed[gap, crash] += 1
    return crossed


async def _cross_one(world: TransactionWorld, gap: Gap, crash: Crash, plan: Plan, *, comes_back: bool) -> None:
    await world.open()
    try:
        await world.cross(gap, crash, plan, down_s=2.0, silently=False, comes_back=comes_back)
        await world.look()
        await world.finish()
    finally:
        await world.close()
        await end_all()


def _ending(gap: Gap, *, commits: bool) -> Ending:
    if gap.in_check:
        return Ending.COMMITS_AND_SAYS_UNKNOW if commits else Ending.ROLLS_BACK_AND_SAYS_UNKNOW
    return Ending.COMMITS if commits else Ending.ROLLS_BACK


def run_sample() -> str:
    """The HISTORIES of `make test`; what was executed, for people. Raises what broke."""
    systematic = Counter[tuple[Gap, Crash]]()
    for flush, commits, comes_back in PLANS:
        systematic += cross_every_gap(flush, commits=commits, comes_back=comes_back)
    ran, crossed = run_histories(HISTORIES, seed=1)
    missing = [*(RULES - ran.keys()), *(pair for pair in PAIRS if not systematic[pair])]
    if ran["histories"] < HISTORIES or missing:
        raise AssertionError(f"too little has happened to show anything: {missing} did not; {executed(ran)}")
    table = "\n".join(f"  {gap.value}: {_crashes(gap, systematic + crossed)}" for gap in Gap)
    return f"transactions: {executed(ran)}; crashes in gaps:\n{table}"


def _crashes(gap: Gap, crossed: Counter[tuple[Gap, Crash]]) -> str:
    return ", ".join(f"{crash.value} {crossed[gap, crash]}" for crash in Crash)


@contextmanager
def _database() -> Iterator[ShopDatabase]:
    with tempfile.TemporaryDirectory(prefix="hourglass-transactions-") as folder:
        database = ShopDatabase(Path(folder) / "shop.db")
        try:
            yield database
        finally:
            database.close()


SWEEP_STEPS_MAX = 15


def _sweep(count: int, seed: int) -> Counter[str]:
    return run_histories(count, seed, SWEEP_STEPS_MAX)[0]


TRANSACTION_SWEEP = HistorySweep("transactions", "G19", "histories of transactions", _sweep)
