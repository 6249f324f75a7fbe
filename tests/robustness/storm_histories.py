"""Storms on a replicated pair, from a seed.

`PYTHONHASHSEED=0 python tests/robustness/storm_histories.py 17 [23]` shows the storm of seed 17 again, or those of 17
to 23, as `runner.py` has them: the code under test has sets of texts, whose order is not in its seed.
"""

from __future__ import annotations

import gc
import sys
import time
from collections import Counter

from histories import HistorySweep, end_all, executed
from quiet import quiet
from replica_node import Settings
from simulation import SimLoop, few_collections
from storm_end import Ending
from storm_operator import Operator
from storm_world import StormWorld

from mq_broker.core.replica_state import BrokerRole
from mq_broker.store.message_store import FlushDiskType
from osenv import SeededRng


class StormHistory:
    """One storm."""

    def __init__(self, seed: int) -> None:
        rng = SeededRng(seed)
        role = rng.choice((BrokerRole.SYNC_MASTER, BrokerRole.SYNC_MASTER, BrokerRole.ASYNC_MASTER))
        flush = rng.choice((FlushDiskType.SYNC_FLUSH, FlushDiskType.ASYNC_FLUSH))
        min_in_sync = rng.choice((1, 2)) if role is BrokerRole.SYNC_MASTER else 1
        settings = Settings(flush, role, min_in_sync, has_index=True)
        self.title = f"seed {seed}: {role.name}, {flush.name}, minInSyncReplicas={min_in_sync}"
        self.world = StormWorld(rng, settings)
        self.operator = Operator(self.world)
        self.world.counts[f"storms under {role.name} and {flush.name}"] += 1

    async def run(self) -> Counter[str]:
        """All of it; returns what has happened. Raises what broke, with the last events."""
        world = self.world
        try:
            with world.in_place():
                await world.open()
                await self.operator.storm()
                await Ending(world).finish()
        except BaseException as error:
            error.add_note(f"{self.title}, at {world.now:.1f} s: {self.operator.last_events}")
            raise
        finally:
            await world.close()
            await end_all()
        return world.counts + world.network.counts


def run_history(seed: int) -> Counter[str]:
    """The storm of this seed. Raises what broke."""
    loop = SimLoop()
    try:
        return loop.run_until_complete(StormHistory(seed).run())
    finally:
        loop.close()
        gc.collect()  # a world is full of circles


def run_histories(count: int, seed: int) -> Counter[str]:
    """So many, whose seeds follow each other: those of 1 begin with 1. Raises what broke."""
    ran: Counter[str] = Counter()
    with quiet(), few_collections():
        for number in range(count):
            ran += run_history((seed - 1) * count + number + 1)
            ran["histories"] += 1
    return ran


STORM_SWEEP = HistorySweep("storm", "G15", "storms on a pair", run_histories, goal=10_000, share=40, histories=1)


if __name__ == "__main__":
    with quiet(), few_collections():
        for chosen in range(int(sys.argv[1]), int(sys.argv[-1]) + 1):
            began = time.perf_counter()
            print(f"seed {chosen}: {executed(run_history(chosen))}, {time.perf_counter() - began:.1f} s", flush=True)
