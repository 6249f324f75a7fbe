"""Fixtures for tests of code that uses the queue: `broker`, an embedded broker of the test's own, and its `clock`;
`sync_broker` for tests without an event loop, which has a `clock` of its own.

    async def test_an_unpaid_order_closes(broker, clock):
        ...  # clients take broker.url
        await clock.advance(30 * 60)
        await broker.idle()

`clock.advance` lets time pass and waits for the event loop; `broker.idle` waits, while time stands still, for listeners
that work in threads or with a database whose driver does (aiosqlite); `clock.until(condition)` does both in turn until
the condition is true. Loaded by pytest through its entry points where the broker is installed; needs pytest-asyncio,
and tests on its event loop. With `asyncio_mode = auto` a test with anyio's marker has another loop, and fails before it
begins; a client on another loop, such as that of starlette's TestClient, gets an IllegalStateError.
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
    _require_one_loop(request)
    async with EmbeddedBroker(request.node.name, clock=clock) as embedded:
        yield embedded


@pytest.fixture
def sync_broker(request: pytest.FixtureRequest) -> Iterator[SyncEmbeddedBroker]:
    """The same for mqclient.sync, in a test that is a plain function; its `clock` blocks until time has passed."""
    with SyncEmbeddedBroker(request.node.name) as embedded:
        yield embedded


def _require_one_loop(request: pytest.FixtureRequest) -> None:
    """Fail where the broker and its test would wait for each other forever."""
    config = request.config
    mode = config.getoption("asyncio_mode", None) or config.getini("asyncio_mode")
    if mode == "auto" and request.node.get_closest_marker("anyio") is not None:
        pytest.fail(
            f"{request.node.name} runs on anyio's event loop, the broker on pytest-asyncio's: with asyncio_mode = auto"
            " async tests need no marker; remove the marker, or set asyncio_mode = strict",
            pytrace=False,
        )
