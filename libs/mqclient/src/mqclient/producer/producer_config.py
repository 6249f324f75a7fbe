"""What can be set about a producer, checked once. RocketMQ's names and defaults, in Python spelling."""

from __future__ import annotations

from dataclasses import dataclass

from mqclient.errors import IllegalArgumentError
from mqclient.settings import require_integer, require_number
from mqproto.record import BODY_BYTES_MAX

ZLIB_LEVEL_MAX = 9


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Durations are in seconds. Raises IllegalArgumentError for values that make no sense.

    `send_msg_timeout_s` is the budget of one call, over all its tries. `send_msg_max_timeout_per_request_s` bounds one
    try of it while another may follow on another broker; None leaves each try what is left of the budget.

    `compress_msg_body_over_howmuch` is the size from which on bodies are compressed; None sends all as they are.

    `client_async_semaphore_value` and `client_oneway_semaphore_value` bound how many sends of the kind are under way,
    and `back_pressure_for_async_send_size` how many bytes their bodies have together, for each kind.
    """

    send_msg_timeout_s: float = 3.0  # MISSION P4
    send_msg_max_timeout_per_request_s: float | None = None
    retry_times_when_send_failed: int = 2  # MISSION P5
    retry_times_when_send_async_failed: int = 2  # MISSION P6
    retry_another_broker_when_not_store_ok: bool = False
    send_latency_fault_enable: bool = False  # MISSION P11
    compress_msg_body_over_howmuch: int | None = 4_096
    compress_level: int = 5
    max_message_size: int = BODY_BYTES_MAX  # MISSION M7; for a batch, of all its records
    client_async_semaphore_value: int = 65_535
    client_oneway_semaphore_value: int = 65_535
    back_pressure_for_async_send_size: int = 100 * 1024 * 1024
    client_callback_executor_threads: int = 4

    def __post_init__(self) -> None:
        require_number(self, "send_msg_timeout_s")
        if self.send_msg_max_timeout_per_request_s is not None:
            require_number(self, "send_msg_max_timeout_per_request_s")
        for name in ("retry_times_when_send_failed", "retry_times_when_send_async_failed"):
            require_integer(self, name, 0)
        for name in ("retry_another_broker_when_not_store_ok", "send_latency_fault_enable"):
            if not isinstance(getattr(self, name), bool):
                raise IllegalArgumentError(f"{name} has to be True or False, not {getattr(self, name)!r}")
        if self.compress_msg_body_over_howmuch is not None:
            require_integer(self, "compress_msg_body_over_howmuch", 1)
        require_integer(self, "compress_level", 1, ZLIB_LEVEL_MAX)
        require_integer(self, "max_message_size", 1, BODY_BYTES_MAX)
        require_integer(self, "back_pressure_for_async_send_size", self.max_message_size)
        for name in (
            "client_async_semaphore_value",
            "client_oneway_semaphore_value",
            "client_callback_executor_threads",
        ):
            require_integer(self, name, 1)
