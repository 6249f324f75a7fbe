"""A producer as a dependency of handlers: the one of its group that runs in the application's lifespan."""

from __future__ import annotations

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

    async def __call__(self) -> ProducerT_co:
        """The running producer. Raises IllegalStateError outside the lifespan."""
        if self._running is None:
            raise IllegalStateError(
                f"the producer {self.group} runs inside the application's lifespan only; httpx's ASGITransport enters"
                " none: put `async with mq.lifespan(app):` around the client"
            )
        return self._running

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """One life of it. Raises as its start does."""
        async with self._make() as producer:
            self._running = producer
            try:
                yield
            finally:
                self._running = None
