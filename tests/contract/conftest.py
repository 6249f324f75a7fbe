"""Each module of contract tests runs in three worlds: an embedded broker whose clock the test moves, and processes that
are reached by gRPC and by frames.

In all of them, every delay level but level 16 is one second, and open transactions are checked after half a second.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio
from contract_world import MemoryWorld, ProcessWorld, Visit, World

from hourglass_local.cluster import Cluster
from mq_broker.core.transactions import TransactionOptions
from mq_broker.embedded import EmbeddedBroker

DELAY_LEVELS = " ".join([*["1s"] * 15, "30m", "1s", "1s"])
CHECK_INTERVAL_MS, CHECK_IMMUNITY_MS, CHECKS_MAX = 200, 500, 15


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["memory", *(pytest.param(wire, marks=pytest.mark.processes) for wire in ("grpc", "frames"))],
)
async def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    if request.param == "memory":
        checks = TransactionOptions(CHECK_INTERVAL_MS, CHECK_IMMUNITY_MS, CHECKS_MAX)
        async with EmbeddedBroker("contract", delay_levels=DELAY_LEVELS, transactions=checks) as broker:
            yield MemoryWorld(broker)
        return
    settings = {
        "transactionCheckInterval": str(CHECK_INTERVAL_MS),
        "transactionTimeOut": str(CHECK_IMMUNITY_MS),
        "transactionCheckMax": str(CHECKS_MAX),
    }
    folder = tmp_path_factory.mktemp("contract")
    async with Cluster(folder, orders=False, delay_levels=DELAY_LEVELS, broker_settings=settings) as cluster:
        yield ProcessWorld(cluster, cluster.frames_url if request.param == "frames" else cluster.url)
        stopped = await cluster.stop()
        assert (stopped.killed, stopped.failed, stopped.leftover) == ((), (), ())


@pytest_asyncio.fixture(loop_scope="module")
async def visit(world: World) -> AsyncIterator[Visit]:
    stack = AsyncExitStack()
    visit = Visit(world, stack)
    yield visit
    await visit.finish(stack.aclose())  # with time passing: after a test that failed, clients may wait for something
