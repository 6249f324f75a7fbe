"""Random histories of brokers that replicate: 2,000 events each, from a seed (figure G6).

`python tests/robustness/replica_histories.py 17 [23]` shows the history of seed 17 again, or those of 17 to 23.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from histories import HistorySweep, end_all, executed
from quiet import quiet
from replica_end import Ending
from replica_faults import Faults
from replica_forging import Forger
from replica_node import Settings
from replica_operator import Operator
from replica_world import ReplicaWorld
from simulation import SimLoop, few_collections

from mq_broker.core.replica_state import BrokerRole
from mq_broker.replication import in_sync, node
from mq_broker.store import log_feed, retention
from mq_broker.store.message_store import FlushDiskType
from osenv import SeededRng

HISTORIES = 24  # of `make test`; `make robustness` goes on
EVENTS = 2_000
SILENCE_S, JOIN_WAIT_S, JOIN_AGAIN_S, JOIN_FRESH_S = 0.6, 0.2, 0.5, 0.2  # a tenth, as replica_node.py has it
ROUND_INTERVAL_S = 1.0
WINDOW_BYTES = 1_024  # of records that are compared at a time
STEPS_S = (0.0, 0.0005, 0.002, 0.01, 0.03, 0.1, 0.3)

Step = Callable[[], Awaitable[bool]]


@contextmanager
def small_numbers() -> Iterator[None]:
    """What is a constant of the code is as short, or as small, as the options of replica_node.py."""
    with (
        patch.object(node, "SILENCE_S", SILENCE_S),
        patch.object(log_feed, "WINDOW_BYTES", WINDOW_BYTES),
        patch.object(retention, "ROUND_INTERVAL_S", ROUND_INTERVAL_S),
        patch.object(in_sync, "JOIN_WAIT_S", JOIN_WAIT_S),
        patch.object(in_sync, "JOIN_AGAIN_S", JOIN_AGAIN_S),
        patch.object(in_sync, "JOIN_FRESH_S", JOIN_FRESH_S),
    ):
        yield


class ReplicaHistory:
    """One history."""

    def __init__(self, seed: int) -> None:
        self._rng = rng = SeededRng(seed)
        role = rng.choice((BrokerRole.SYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER))
        flush = rng.choice((FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH))
        nodes = rng.choice((2, 2, 2, 3))
        min_in_sync = rng.choice((1, 1, 2)) if role is BrokerRole.SYNC_MASTER else 1
        self.settings = Settings(flush, role, min_in_sync, has_index=rng.random() < 0.2)
        self.title = f"seed {seed}: {role.name}, {flush.name}, {nodes} nodes, minInSyncReplicas={min_in_sync}"
        self.world = ReplicaWorld(rng, self.settings, nodes)
        self._faults = Faults(self.world)
        self._operator = Operator(self.world, self._faults)
        self.world.counts[f"histories under {role.name} and {flush.name}"] += 1
        self.world.counts[f"histories of {nodes} nodes"] += 1
        self._steps = self._weighted()
        self.trace: list[str] = []

    def _weighted(self) -> list[tuple[int, Step]]:
        world, forger, faults, operator = self.world, Forger(self.world), self._faults, self._operator
        return [
            (560, world.producers.send),
            (60, world.producers.end_transaction),
            (300, world.consumers.read),
            (120, world.consumers.commit),
            (6, world.consumers.reset),
            (520, self._pass),
            (12, faults.cut_off),
            (40, faults.mend),
            (14, faults.break_links),
            (8, faults.slow),
            (10, faults.slow_disk),
            (8, faults.stop),
            (40, faults.go_on),
            (6, faults.kill),
            (4, faults.lose_power),
            (24, faults.start),
            (5, faults.retain),
            (5, operator.begin_switch),
            (100, operator.go_on_switching),
            (15, operator.take_back),
            (10, operator.replace_foreign),
            (3, operator.force),
            (14, forger.forge),
        ]

    async def _pass(self) -> bool:
        await self.world.advance(self._rng.choice(STEPS_S))
        return True

    async def run(self, events: int = EVENTS) -> Counter[str]:
        """All of it; returns what has happened. Raises what broke, with the last events."""
        world = self.world
        weights, steps = zip(*self._steps, strict=True)
        done = 0
        try:
            await world.open()
            while done < events:
                (step,) = self._rng.choices(steps, weights)
                if await step():
                    done += 1
                    self.trace.append(f"{world.clock.monotonic():.3f} {step.__qualname__}")
                    await world.advance(0.0)
            world.counts["events"] += done
            await Ending(world, self._operator).finish()
        except BaseException as error:
            error.add_note(f"{self.title}, after {done} events, the last ones: {'; '.join(self.trace[-12:])}")
            raise
        finally:
            await world.close()
            await end_all()
        return world.counts + world.network.counts


EXECUTED = frozenset(
    {
        "acknowledgements",
        "batches sent again",
        "brokers opened",
        "bytes of logs compared",
        "commits",
        "commits of progress that held",
        "confirmations alone",
        "confirmations in sync",
        "delayed messages delivered",
        "disks that change their speed",
        "forced promotions (cut)",
        "forced promotions (disk)",
        "forced promotions (kill)",
        "forced promotions (power)",
        "forced promotions of a replica in sync",
        "forged: a second request to follow",
        "forged: an acknowledgement beyond the log",
        "forged: an acknowledgement of another epoch",
        "forged: an acknowledgement that goes back",
        "forged: log bytes of a stale epoch",
        "forged: log bytes that are no records",
        "forged: log bytes with a gap",
        "forged: over-long log bytes",
        "frames that stood still",
        "histories of 2 nodes",
        "histories of 3 nodes",
        "kills",
        "links broken",
        "masters again after a switch was given up",
        "masters told that they are superseded",
        "mends",
        "messages seen",
        "one-way partitions",
        "openings that let promises go",
        "partitions",
        "power cuts",
        "power cuts of all",
        "processes stopped",
        "progress told to a master",
        "progress told to a replica",
        "promises let go",
        "promises from a past epoch",
        "reads at a replica",
        "reads at the master",
        "rejected: NOT_LEADER_FOR_QUEUE",
        "resets",
        "resets that held",
        "roll-backs",
        "disks too full",
        "slow ways",
        "stale masters that came back",
        "starts",
        "step-downs",
        "SUCCESS of SYNC_MASTER",
        "SUCCESS of ASYNC_MASTER",
        "SLAVE_NOT_AVAILABLE of SYNC_MASTER",
        "FLUSH_SLAVE_TIMEOUT of SYNC_MASTER",
        "switches",
        "switches given up",
        "transactions committed",
        "transactions rolled back",
    }
)


def run_history(seed: int) -> Counter[str]:
    """The history of this seed. Raises what broke."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(ReplicaHistory(seed).run())
    finally:
        loop.close()
        gc.collect()  # a world is full of circles, and some 10 MB


def run_histories(count: int, seed: int) -> Counter[str]:
    """So many, whose seeds follow each other: those of 1 begin with 1. Raises what broke."""
    ran: Counter[str] = Counter()
    with quiet(), few_collections(), small_numbers():
        for number in range(count):
            ran += run_history((seed - 1) * count + number + 1)
            ran["histories"] += 1
    return ran


def run_sample() -> str:
    """The HISTORIES of `make test`; what was executed, for people. Raises what broke."""
    ran = run_histories(HISTORIES, seed=1)
    never = sorted(EXECUTED - ran.keys())
    if never or ran["events"] < EVENTS * HISTORIES:
        raise AssertionError(f"too little has happened to show anything; never: {never}; else: {executed(ran)}")
    return f"master and replica: {executed(ran)}"


REPLICA_SWEEP = HistorySweep("replicas", "G6", "simulated master-replica histories", run_histories, goal=50_000)


if __name__ == "__main__":
    with quiet(), small_numbers():
        for chosen in range(int(sys.argv[1]), int(sys.argv[-1]) + 1):
            print(f"seed {chosen}: {executed(run_history(chosen))}", flush=True)
