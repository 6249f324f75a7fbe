"""Whom an operator's call asks, and what becomes of several answers.

Invariants: brokers are asked one after the other, by name, so that what was done before an error can be told; an answer
other than SUCCESS raises, and says which broker gave it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.config import ClientConfig
from mqclient.connection.broker_connections import BrokerConnection
from mqclient.errors import (
    BrokerRefusedError,
    BrokerRejectedError,
    IllegalArgumentError,
    MQClientError,
    NoRouteError,
    require_success,
    with_more,
)
from mqclient.lifecycle import Lifecycle, LifecycleEvent, Living
from mqclient.name_servers import MASTER_ID
from mqclient.transport import Method, RequestT, ResponseT

T = TypeVar("T")
_ANSWERED = (BrokerRefusedError, BrokerRejectedError)


class CodedAnswer(Protocol):
    """An answer that says by its code whether it is one."""

    @property
    def code(self) -> int: ...

    @property
    def remark(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Target:
    """One broker that is asked. `name` is its address when it was given by address."""

    name: str
    connection: BrokerConnection

    @property
    def address(self) -> str:
        return self.connection.address

    async def ask(
        self, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
    ) -> ResponseT:
        """The answer, whatever it says. Raises MQClientError when there is none, by default in `request_timeout_s`."""
        return await self.connection.unary(method, request, timeout_s)


class AdminCalls(Living):
    """The life of an Admin, and its way to the brokers."""

    def __init__(self, url: str, *, client_config: ClientConfig | None = None) -> None:
        self._url = url
        self._config = client_config or ClientConfig()
        self._lifecycle = Lifecycle("admin")
        self._instance: ClientInstance

    async def start(self) -> None:
        """Join the client instance. Raises UnknownTransportError, IllegalArgumentError, IllegalStateError."""
        self._lifecycle.move(LifecycleEvent.START)
        self._instance = acquire_instance(self._url, self._config)
        self._instance.register_admin(self)
        self._lifecycle.move(LifecycleEvent.STARTED)

    async def shutdown(self, *, timeout_s: float = 10.0) -> None:
        """Leave the client instance, within `timeout_s`. Raises IllegalStateError."""
        self._lifecycle.move(LifecycleEvent.SHUTDOWN)
        self._instance.unregister_admin(self)
        await self._instance.release(self._instance.clock.monotonic() + timeout_s)

    # ------------------------------------------------------------------------------------------------ for the subjects

    async def _targets(self, cluster_name: str | None = None, broker_address: str | None = None) -> Sequence[Target]:
        """Every master, those of one cluster, or the one at an address. Raises NoRouteError, IllegalArgumentError."""
        if broker_address is not None:
            if cluster_name is not None:
                raise IllegalArgumentError("a call names a cluster or the address of a broker, not both")
            return [self._target_at(broker_address)]
        self._lifecycle.require_running()
        masters = [
            Target(broker.broker_name, self._instance.connection_to(broker.addresses[MASTER_ID]))
            for broker in await self._instance.name_servers.list_brokers()
            if MASTER_ID in broker.addresses and cluster_name in (None, broker.cluster_name)
        ]
        if not masters:
            raise NoRouteError(f"no master lives in {'any cluster' if cluster_name is None else cluster_name}")
        return masters

    def _target_at(self, broker_address: str) -> Target:
        self._lifecycle.require_running()
        return Target(broker_address, self._instance.connection_to(broker_address))

    async def _target_named(self, broker_name: str) -> Target:
        """The living master of this name. Raises NoRouteError."""
        for target in await self._targets():
            if target.name == broker_name:
                return target
        raise NoRouteError(f"no master lives that is called {broker_name!r}")


async def answer_of(
    target: Target, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
) -> ResponseT:
    """The broker's answer. Raises its refusal, and MQClientError when there is none."""
    response = await target.ask(method, request, timeout_s)
    coded: CodedAnswer = response  # type: ignore[assignment]  # protobuf's messages know their fields only by name
    require_success(coded.code, coded.remark, target.name)
    return response


async def on_each(
    targets: Sequence[Target],
    step: Callable[[Target], Awaitable[T]],
    *,
    passing_over: Container[int] = (),
) -> list[tuple[Target, T]]:
    """What `step` gives for each broker; the first error ends it, and names the brokers that were done before.

    A broker that refuses with one of the codes `passing_over` is left out; when all of them do, the last refusal is
    raised.
    """
    done: list[tuple[Target, T]] = []
    refusal: MQClientError | None = None
    for target in targets:
        try:
            done.append((target, await step(target)))
        except MQClientError as error:
            if isinstance(error, _ANSWERED) and error.code in passing_over:
                refusal = error
            elif done:
                names = ", ".join(before.name for before, _ in done)
                raise with_more(error, f"; done before: {names}") from error
            else:
                raise
    if refusal is not None and not done:
        raise refusal
    return done
