"""Fixtures for tests of code that uses the queue: `broker`, an embedded broker of the test's own, and its `clock`;
`sync_broker` for tests without an event loop, which has a `clock` of its own.

    async def test_an_unpaid_order_closes(broker, clock):
        ...  # clients take broker.url
        await clock.advance(30 * 60)
        await broker.idle()

`clock.advance` lets time pass and waits for the event loop; `broker.idle` waits, while time stands still, for listeners
that work in threads or with a database whose driver does (aiosqlite); `clock.until(condition)` does both in turn until
the condition is true. Loaded by pytest through its entry points where the broker is installed; needs pytest-asyncio,
and tests on its event loop: anyio's marker and starlette's TestClient have loops of their own, and get an
IllegalStateError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from mq_broker.embedded import EmbeddedBroker, SyncEmbeddedBroker
from osenv import SimClock


@pytest.fixture
def clock() -> SimClock:
    """The time of the test: it stands still until the test moves it (`advance`, `until`)."""
    return SimClock()


@pytest_asyncio.fixture
async def broker(clock: SimClock, request: pytest.FixtureRequest) -> AsyncIterator[EmbeddedBroker]:
    """A running broker under a URL of its own, stopped after the test; `idle` waits for its clients."""
    async with EmbeddedBroker(request.node.name, clock=clock) as embedded:
        yield embedded


@pytest.fixture
def sync_broker(request: pytest.FixtureRequest) -> Iterator[SyncEmbeddedBroker]:
    """The same for mqclient.sync, in a test that is a plain function; its `clock` blocks until time has passed."""
    with SyncEmbeddedBroker(request.node.name) as embedded:
        yield embedded
