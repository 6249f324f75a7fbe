"""What can be set about a client instance, checked once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from mqclient.errors import IllegalArgumentError

DEFAULT_INSTANCE_NAME = "DEFAULT"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Durations are in seconds. Raises IllegalArgumentError for values that make no sense."""

    instance_name: str = DEFAULT_INSTANCE_NAME  # MISSION L3: DEFAULT becomes the process id
    unit_name: str = ""
    route_refresh_first_delay_s: float = 0.01  # MISSION L7
    route_refresh_interval_s: float = 30.0  # MISSION N6
    heartbeat_interval_s: float = 30.0  # MISSION L8
    name_server_timeout_s: float = 1.0  # for one name server, so that a silent one does not eat a send's budget
    request_timeout_s: float = 3.0  # for one unary call to a broker
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
            raise IllegalArgumentError("instance_name is empty; leave it out to use the process id")
        if self.reconnect_backoff_max_s < self.reconnect_backoff_min_s:
            raise IllegalArgumentError("reconnect_backoff_max_s has to be at least reconnect_backoff_min_s")
