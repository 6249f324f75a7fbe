"""Brokers: which ones live, and how they are."""

from __future__ import annotations

from dataclasses import dataclass

from hourglass.mq.v1 import admin_service_pb2 as admin_pb
from mqclient.admin.asking import AdminCalls, Target, on_each
from mqclient.transport.methods import GET_BROKER_CONFIG, GET_BROKER_STATUS


@dataclass(frozen=True, slots=True)
class ClusterBroker:
    """One living broker process; id 0 is the master of its name."""

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
    """How a broker's store is; the meaning of each number stands in admin_service.proto."""

    confirm_offset: int
    durable_offset: int
    indexed_offset: int
    disk_used_share: float
    write_refusal: str
    damaged: tuple[tuple[int, int], ...]  # (log offset, size)
    files_deleted: int
    messages_carried: int


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker as it describes itself; the meaning of each number stands in admin_service.proto.

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
        """Every living broker, by cluster, name and id. Raises NoRouteError when no name server answers."""
        self._lifecycle.require_running()
        brokers = [
            ClusterBroker(broker.cluster_name, broker.broker_name, broker_id, address)
            for broker in await self._instance.name_servers.list_brokers()
            for broker_id, address in broker.addresses.items()
        ]
        return sorted(brokers, key=lambda one: (one.cluster_name, one.broker_name, one.broker_id))

    async def broker_statuses(self) -> list[BrokerStatus]:
        """Every master's account of itself. Raises NoRouteError when there is none, and MQClientError."""
        return [status for _, status in await on_each(await self._targets(), _status)]

    async def broker_status(self, address: str) -> BrokerStatus:
        """One broker's account of itself. Raises MQClientError when it does not answer."""
        return await _status(self._target_at(address))

    async def broker_config(self, address: str) -> dict[str, str]:
        """One broker's configuration as it is in force, by the keys of broker.conf, sorted.

        Raises MQClientError when it does not answer.
        """
        answer = await self._target_at(address).ask(GET_BROKER_CONFIG, admin_pb.GetBrokerConfigRequest())
        return dict(sorted(answer.config.items()))


async def _status(target: Target) -> BrokerStatus:
    response = await target.ask(GET_BROKER_STATUS, admin_pb.GetBrokerStatusRequest())
    store = response.store
    return BrokerStatus(
        broker_name=response.broker_name,
        broker_id=response.broker_id,
        address=target.address,
        boot_timestamp_ms=response.boot_timestamp_ms,
        log_min_offset=response.log_min_offset,
        log_max_offset=response.log_max_offset,
        messages_put=response.messages_put,
        messages_got=response.messages_got,
        messages_stored=response.messages_stored,
        polls_held=response.polls_held,
        delay_levels=tuple(
            DelayLevelStatus(
                level=level.level,
                delay_ms=level.delay_ms,
                waiting=level.waiting,
                next_due_timestamp_ms=level.next_due_timestamp_ms,
                delivered=level.delivered,
                lateness_p50_ms=level.lateness_p50_ms,
                lateness_p99_ms=level.lateness_p99_ms,
                lateness_max_ms=level.lateness_max_ms,
            )
            for level in sorted(response.delay_levels, key=lambda one: (one.level < 0, one.level))
        ),
        store=StoreStatus(
            confirm_offset=store.confirm_offset,
            durable_offset=store.durable_offset,
            indexed_offset=store.indexed_offset,
            disk_used_share=store.disk_used_share,
            write_refusal=store.write_refusal,
            damaged=tuple((one.log_offset, one.size) for one in store.damaged),
            files_deleted=store.files_deleted,
            messages_carried=store.messages_carried,
        ),
    )
