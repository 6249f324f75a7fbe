"""Brokers: which ones are registered, their state, and how an operator's calls reach them.

Invariants: brokers are asked one after the other, by name, so that what was done before an error can be told; an answer
other than SUCCESS raises, and says which broker gave it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from mqclient.client_instance import ClientInstance, acquire_instance
from mqclient.config import ClientConfig
from mqclient.connection.broker_connections import BrokerConnection
from mqclient.errors import (
    BrokerRejectedError,
    BrokerUnavailableError,
    IllegalArgumentError,
    MQClientError,
    NoRouteError,
    require_success,
    with_more,
)
from mqclient.lifecycle import Lifecycle, LifecycleEvent, Service
from mqclient.name_servers import MASTER_ID
from mqclient.transport import Method, RequestT, ResponseT
from mqclient.transport.methods import EXPLAIN_MESSAGE, GET_BROKER_CONFIG, GET_BROKER_STATUS
from mqproto.codes import LifeEventKind
from mqproto.values import to_value

T = TypeVar("T")
_ANSWERED = (BrokerUnavailableError, BrokerRejectedError)


class CodedAnswer(Protocol):
    """An answer with a response code; only SUCCESS has a result."""

    @property
    def code(self) -> int: ...

    @property
    def remark(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a call. `name` is its address when it was given by address."""

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


class AdminCalls(Service):
    """The lifecycle of an Admin, and its calls to brokers."""

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
            raise NoRouteError(f"no master is registered in {'any cluster' if cluster_name is None else cluster_name}")
        return masters

    def _target_at(self, broker_address: str) -> Target:
        self._lifecycle.require_running()
        return Target(broker_address, self._instance.connection_to(broker_address))

    async def _target_named(self, broker_name: str) -> Target:
        """The registered master of this name. Raises NoRouteError."""
        for target in await self._targets():
            if target.name == broker_name:
                return target
        raise NoRouteError(f"no master is registered as {broker_name!r}")


async def answer_of(
    target: Target, method: Method[RequestT, ResponseT], request: RequestT, timeout_s: float | None = None
) -> ResponseT:
    """The broker's answer. Raises its rejection, and MQClientError when there is none."""
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

    A broker that rejects with one of the codes `passing_over` is left out; when all of them do, the last rejection is
    raised.
    """
    done: list[tuple[Target, T]] = []
    rejection: MQClientError | None = None
    for target in targets:
        try:
            done.append((target, await step(target)))
        except MQClientError as error:
            if isinstance(error, _ANSWERED) and error.code in passing_over:
                rejection = error
            elif done:
                names = ", ".join(before.name for before, _ in done)
                raise with_more(error, f"; done before: {names}") from error
            else:
                raise
    if rejection is not None and not done:
        raise rejection
    return done


@dataclass(frozen=True, slots=True)
class ClusterBroker:
    """One registered broker process; id 0 is the master of its name."""

    cluster_name: str
    broker_name: str
    broker_id: int
    address: str


@dataclass(frozen=True, slots=True)
class DelayLevelStatus:
    """One delay level of one broker, or its timer for messages with a time of their own: level -1.

    `delay_ms` is 0 for the timer, and for a level that the broker's table has lost while messages wait there.
    Lateness is delivered minus due, of what was `delivered` since the broker started; the quantiles are upper bounds,
    at most an eighth too high. `next_due_timestamp_ms` is 0 when nothing waits.
    """

    level: int
    delay_ms: int
    waiting: int
    next_due_timestamp_ms: int
    delivered: int
    lateness_p50_ms: int
    lateness_p99_ms: int
    lateness_max_ms: int


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """The state of a broker's store; admin_service.proto explains each number."""

    confirm_offset: int
    durable_offset: int
    indexed_offset: int
    disk_used_share: float
    write_rejection: str
    damaged: tuple[tuple[int, int], ...]  # (log offset, size)
    files_deleted: int
    messages_carried: int


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """The status of one broker; admin_service.proto explains each number.

    `delay_levels` are from level 1 up, and the timer is the last.
    """

    broker_name: str
    broker_id: int
    address: str
    boot_timestamp_ms: int
    log_min_offset: int
    log_max_offset: int
    messages_put: int
    messages_got: int
    messages_stored: int
    polls_held: int
    delay_levels: tuple[DelayLevelStatus, ...]
    store: StoreStatus


class BrokerAdmin(AdminCalls):
    """Calls about brokers."""

    async def cluster_list(self) -> list[ClusterBroker]:
        """Every registered broker, by cluster, name and id. Raises NoRouteError when no name server answers."""
        self._lifecycle.require_running()
        brokers = [
            ClusterBroker(broker.cluster_name, broker.broker_name, broker_id, address)
            for broker in await self._instance.name_servers.list_brokers()
            for broker_id, address in broker.addresses.items()
        ]
        return sorted(brokers, key=lambda one: (one.cluster_name, one.broker_name, one.broker_id))

    async def broker_statuses(self) -> list[BrokerStatus]:
        """The status of every master. Raises NoRouteError when there is none, and MQClientError."""
        return [status for _, status in await on_each(await self._targets(), _status)]

    async def broker_status(self, address: str) -> BrokerStatus:
        """The status of one broker. Raises MQClientError when it does not answer."""
        return await _status(self._target_at(address))

    async def broker_config(self, address: str) -> dict[str, str]:
        """One broker's configuration as it is in force, by the keys of broker.conf, sorted.

        Raises MQClientError when it does not answer.
        """
        answer = await self._target_at(address).ask(GET_BROKER_CONFIG, admin_pb.GetBrokerConfigRequest())
        return dict(sorted(answer.config.items()))


async def _status(target: Target) -> BrokerStatus:
    response = await target.ask(GET_BROKER_STATUS, admin_pb.GetBrokerStatusRequest())
    levels = sorted(response.delay_levels, key=lambda one: (one.level < 0, one.level))
    damaged = tuple((one.log_offset, one.size) for one in response.store.damaged)
    return to_value(
        BrokerStatus,
        response,
        address=target.address,
        delay_levels=tuple(to_value(DelayLevelStatus, level) for level in levels),
        store=to_value(StoreStatus, response.store, damaged=damaged),
    )


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """One event of one message on one broker, or its present state.

    `timestamp_ms` is when the record that tells it was stored; 0 for what is the case now. `group` is the consumer
    group of RETRIED, DEAD, CONSUMED, UNCONSUMED, and of DELIVERED to a retry topic, and the producer group of HALF,
    COMMITTED, ROLLED_BACK and PARKED. `due_timestamp_ms` is set for WAITING and RETRIED, and for DELIVERED while the
    record that waited is in the log. `reconsume_times` are the tries before the record of the event was written.
    """

    timestamp_ms: int
    kind: LifeEventKind
    message_id: str
    broker_name: str
    topic: str
    queue_id: int
    queue_offset: int
    log_offset: int
    group: str = ""
    due_timestamp_ms: int = 0
    reconsume_times: int = 0


class LifeAdmin(AdminCalls):
    """The call that explains a message."""

    async def explain(self, key: str, *, topic: str | None = None, max_messages: int = 32) -> list[LifeEvent]:
        """Everything that the masters know of the messages with this key or unique id, in `topic` or in every topic.

        By time; what is the case now comes last. Each broker looks at up to `max_messages` messages, at most 2,000.
        Raises NoRouteError when there is no broker, and the first rejection of a broker.
        """
        request = admin_pb.ExplainMessageRequest(topic=topic or "", key=key, max_messages=max_messages)
        answers = await on_each(await self._targets(), lambda target: answer_of(target, EXPLAIN_MESSAGE, request))
        events = [
            to_value(LifeEvent, event, kind=LifeEventKind(event.kind), broker_name=target.name)
            for target, answer in answers
            for event in answer.events
        ]
        return sorted(events, key=lambda event: (event.timestamp_ms == 0, event.timestamp_ms))
