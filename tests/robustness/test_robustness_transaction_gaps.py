"""Every gap of a transaction is crossed by kill -9 of the client, of the broker and of both, with real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio
from transaction_gaps import Crash, Gap
from transaction_processes import KILLS, Shop, open_shop

SENDING = [gap for gap in Gap if not gap.in_end and not gap.in_check]

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shop(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Shop]:
    async with open_shop(tmp_path_factory.mktemp("gaps")) as shop:
        yield shop


@pytest.mark.mechanism("T1")
@pytest.mark.parametrize("crash", KILLS, ids=lambda crash: crash.value)
@pytest.mark.parametrize("gap", SENDING, ids=lambda gap: gap.name)
async def test_a_message_is_visible_if_and_only_if_its_row_is_in_the_database(
    shop: Shop, gap: Gap, crash: Crash, record_property: Callable[[str, object], None]
) -> None:
    """Ends and checks are in test_robustness_transaction_gaps_too.py, so that two workers share them."""
    record_property("figure", await shop.survive(gap, crash))
