"""Every gap of a transaction is crossed by kill -9 of the client, of the broker or of both, with real processes.

Every pair of gap and crash is in test_robustness_transactions.py, with the production code in one process; here the
crashes take turns.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import cycle

import pytest
import pytest_asyncio
from transaction_client import TOPIC
from transaction_gaps import Crash, Gap
from transaction_processes import KILLS, Shop, open_shop

from mqclient import Admin

PAIRS = list(zip(Gap, cycle(KILLS)))

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with open_shop(tmp_path_factory.mktemp("gaps")) as shop:
        yield shop


async def test_a_client_of_the_proxy_is_never_told_another_address(shop: Shop) -> None:
    async with Admin(f"mq://{shop.proxy.address}") as admin:
        listed = {broker.address for broker in await admin.cluster_list()}
        (routed,) = (await admin.topic_route(TOPIC)).brokers.values()
    assert (listed, set(routed.values())) == ({shop.proxy.address}, {shop.proxy.address})


@pytest.mark.mechanism("T1")
@pytest.mark.parametrize(("gap", "crash"), PAIRS, ids=[f"{gap.name}-{crash.value}" for gap, crash in PAIRS])
async def test_a_message_is_visible_if_and_only_if_its_row_is_in_the_database(
    shop: Shop, gap: Gap, crash: Crash, record_property: Callable[[str, object], None]
) -> None:
    record_property("figure", await shop.survive(gap, crash))
