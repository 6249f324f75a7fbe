"""Fixtures for tests of code that uses the queue: `broker`, an embedded broker of the test's own, and its `clock`.

    async def test_an_unpaid_order_closes(broker, clock):
        ...  # clients take broker.url
        await clock.advance(30 * 60)

Loaded by pytest through its entry points where the broker is installed; needs pytest-asyncio.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from mq_broker.embedded import EmbeddedBroker
from osenv import SimClock


@pytest.fixture
def clock() -> SimClock:
    """The time of the test: it stands still until the test moves it."""
    return SimClock()


@pytest_asyncio.fixture
async def broker(clock: SimClock, request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedBroker]:
    """A running broker under a URL of its own, stopped after the test."""
    async with EmbeddedBroker(request.node.name, clock=clock) as embedded:
        yield embedded
