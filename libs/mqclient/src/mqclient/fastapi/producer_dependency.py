"""A producer as a dependency of handlers: the one of its group that runs in the application's lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from mqclient.errors import IllegalStateError
from mqclient.producer.producer import Producer

ProducerT_co = TypeVar("ProducerT_co", bound=Producer, covariant=True)


class ProducerDependency(Generic[ProducerT_co]):
    """What `Depends` takes. There is one for each group, so that it is also the key for `app.dependency_overrides`."""

    def __init__(self, group: str, make: Callable[[], ProducerT_co]) -> None:
        """`make` makes a producer for one life of the application."""
        self.group = group
        self._make = make
        self._running: ProducerT_co | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self) -> ProducerT_co:
        """The running producer. Raises IllegalStateError outside the lifespan, and on another event loop than its."""
        if self._running is None:
            raise IllegalStateError(
                f"the producer {self.group} runs inside the application's lifespan only; httpx's ASGITransport enters"
                " none: put `async with mq.lifespan(app):` around the client"
            )
        if asyncio.get_running_loop() is not self._loop:
            raise IllegalStateError(
                f"the producer {self.group} runs on another event loop than this request, which would wait forever;"
                " starlette's TestClient has a loop of its own: use httpx.AsyncClient with httpx.ASGITransport(app)"
                " inside `async with mq.lifespan(app):`"
            )
        return self._running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """One life of it. Raises as its start does."""
        async with self._make() as producer:
            self._running, self._loop = producer, asyncio.get_running_loop()
            try:
                yield
            finally:
                self._running = None
