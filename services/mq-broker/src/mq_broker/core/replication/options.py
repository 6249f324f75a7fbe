"""What the configuration says about replication; names and defaults are RocketMQ's where it has them."""

from __future__ import annotations

from dataclasses import dataclass

from mq_broker.core.replication.roles import BrokerRole


@dataclass(frozen=True, slots=True)
class ReplicationOptions:
    """Addresses are host:port; an empty `master_ha_address` has a slave ask the name servers."""

    role: BrokerRole = BrokerRole.ASYNC_MASTER
    ha_address: str = ""  # where slaves find this broker
    master_ha_address: str = ""  # haMasterAddress
    min_in_sync_replicas: int = 1  # minInSyncReplicas, with the master
    slave_timeout_ms: int = 3_000  # slaveTimeout: how long a send waits for its slaves
    slave_not_catchup_ms: int = 15_000  # haMaxTimeSlaveNotCatchup: how long a slave may be behind and in sync
    beat_interval_ms: int = 1_000  # haSendHeartbeatInterval
    slave_read_enable: bool = True  # slaveReadEnable
    is_registered: bool = False  # with name servers, which know of other replicas
    access_message_in_memory_max_ratio: int = 40  # percent of the machine's memory (MISSION H3)
