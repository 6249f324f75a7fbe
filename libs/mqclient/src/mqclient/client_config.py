"""What can be set about a client instance, checked once; by the names of RocketMQ's ClientConfig where it has one."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mqclient.errors import IllegalArgumentError

DEFAULT_INSTANCE_NAME = "DEFAULT"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Durations are in seconds. Raises IllegalArgumentError for values that make no sense."""

    instance_name: str = DEFAULT_INSTANCE_NAME  # DEFAULT becomes a name that no other process has
    unit_name: str = ""
    # The scheduled tasks of the instance: how long after its start each runs first, and then how often.
    fetch_name_server_addr_first_delay_s: float = 10.0  # MISSION L6, N7
    fetch_name_server_addr_interval_s: float = 120.0
    poll_name_server_first_delay_s: float = 0.01  # MISSION L7, N6: the routes of all cached topics
    poll_name_server_interval_s: float = 30.0
    heartbeat_broker_first_delay_s: float = 1.0  # MISSION L8
    heartbeat_broker_interval_s: float = 30.0
    persist_consumer_offset_first_delay_s: float = 10.0  # MISSION L9, C22
    persist_consumer_offset_interval_s: float = 5.0
    name_server_lookup_timeout_s: float = 3.0  # to fetch the name servers' addresses; RocketMQ's fetchNSAddr
    name_server_timeout_s: float = 1.0  # for one name server, so that a silent one does not eat a send's budget
    request_timeout_s: float = 3.0  # for one unary call to a broker; RocketMQ's mqClientApiTimeout
    default_topic_queue_nums: int = 4  # MISSION N8, N10
    reconnect_backoff_min_s: float = 0.2
    reconnect_backoff_max_s: float = 2.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, str):
                if not isinstance(value, str) or "@" in value:
                    raise IllegalArgumentError(f"{field.name} has to be text without @, not {value!r}")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
                raise IllegalArgumentError(f"{field.name} has to be a number above 0, not {value!r}")
        if not self.instance_name:
            raise IllegalArgumentError("instance_name is empty; leave it out to get a unique name")
        if self.reconnect_backoff_max_s < self.reconnect_backoff_min_s:
            raise IllegalArgumentError("reconnect_backoff_max_s has to be at least reconnect_backoff_min_s")
