"""The gaps from the end of a transaction on: two files, so that two workers share them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from transaction_client import TOPIC
from transaction_gaps import Crash, Gap
from transaction_processes import KILLS, Shop, open_shop

from mqclient import Admin

ENDING = [gap for gap in Gap if gap.in_end or gap.in_check]

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


@pytest.mark.parametrize("crash", KILLS, ids=lambda crash: crash.value)
@pytest.mark.parametrize("gap", ENDING, ids=lambda gap: gap.name)
async def test_a_message_is_visible_if_and_only_if_its_row_is_in_the_database(
    shop: Shop, gap: Gap, crash: Crash, record_property: Callable[[str, object], None]
) -> None:
    record_property("figure", await shop.survive(gap, crash))
