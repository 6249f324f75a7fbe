"""The life of a producer, a consumer or a client instance, as a table (MISSION L1).

Invariants: the state only changes along the table; an event that the table does not have raises and changes nothing. A
start first sets START_FAILED, so that a start that raises half-way leaves the truth behind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from types import TracebackType
from typing import Self

from mqclient.errors import IllegalStateError


class ServiceState(Enum):
    """RocketMQ's names."""

    CREATE_JUST = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    SHUTDOWN = "SHUTDOWN"


class LifecycleEvent(Enum):
    """What can happen to a service."""

    START = "start"
    STARTED = "finish its start"
    SHUTDOWN = "shut down"


TRANSITIONS: dict[tuple[ServiceState, LifecycleEvent], ServiceState] = {
    (ServiceState.CREATE_JUST, LifecycleEvent.START): ServiceState.START_FAILED,
    (ServiceState.START_FAILED, LifecycleEvent.STARTED): ServiceState.RUNNING,
    (ServiceState.RUNNING, LifecycleEvent.SHUTDOWN): ServiceState.SHUTDOWN,
}


class Lifecycle:
    """The state of the service called `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.state = ServiceState.CREATE_JUST

    @property
    def running(self) -> bool:
        return self.state is ServiceState.RUNNING

    def move(self, event: LifecycleEvent) -> None:
        """Follow the table. Raises IllegalStateError."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise IllegalStateError(f"{self._name} cannot {event.value}: it is in state {self.state.value}")
        self.state = following

    def require_running(self) -> None:
        """Raise IllegalStateError unless the service runs."""
        if self.state is not ServiceState.RUNNING:
            raise IllegalStateError(f"{self._name} is not running: it is in state {self.state.value}")


class Living(ABC):
    """What is started and shut down, with `async with` for both: on the way out only what still runs is shut down."""

    _lifecycle: Lifecycle

    @property
    def state(self) -> ServiceState:
        """Where it is in its life: CREATE_JUST, START_FAILED (also while it starts), RUNNING or SHUTDOWN."""
        return self._lifecycle.state

    @abstractmethod
    async def start(self) -> None: ...

    @abstractmethod
    async def shutdown(self, *, timeout_s: float = 10.0) -> None: ...

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lifecycle.running:
            await self.shutdown()
