"""The configuration of a client instance, a producer and a push consumer, checked once, with RocketMQ's names.

All checks have one wording: what was wrong, and what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from mqclient.errors import IllegalArgumentError, IllegalGroupError
from mqproto.names import IllegalNameError, check_group
from mqproto.record import BODY_BYTES_MAX

DEFAULT_INSTANCE_NAME = "DEFAULT"

ZLIB_LEVEL_MAX = 9

MEBIBYTE = 1024 * 1024
PULL_BATCH_SIZE_MAX = 1_024  # what a broker gives at once


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Durations are in seconds. Raises IllegalArgumentError for values that make no sense."""

    instance_name: str = DEFAULT_INSTANCE_NAME  # DEFAULT becomes a name that no other process has
    unit_name: str = ""
    # The scheduled tasks of the instance: how long after its start each runs first, and then how often.
    fetch_name_server_addr_first_delay_s: float = 10.0  # mechanisms L6, N7
    fetch_name_server_addr_interval_s: float = 120.0
    poll_name_server_first_delay_s: float = 0.01  # mechanisms L7, N6: the routes of all cached topics
    poll_name_server_interval_s: float = 30.0
    heartbeat_broker_first_delay_s: float = 1.0  # mechanism L8
    heartbeat_broker_interval_s: float = 30.0
    persist_consumer_offset_first_delay_s: float = 10.0  # mechanisms L9, C22
    persist_consumer_offset_interval_s: float = 5.0
    name_server_lookup_timeout_s: float = 3.0  # to fetch the name servers' addresses; RocketMQ's fetchNSAddr
    name_server_timeout_s: float = 1.0  # for one name server, so that a silent one does not eat a send's budget
    request_timeout_s: float = 3.0  # for one unary call to a broker; RocketMQ's mqClientApiTimeout
    default_topic_queue_nums: int = 4  # mechanisms N8, N10
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


def legal_group(group: str) -> str:
    """The name of a producer's or a consumer's group. Raises IllegalGroupError."""
    try:
        check_group(group)
    except IllegalNameError as error:
        raise IllegalGroupError(str(error)) from error
    return group


def require_integer(config: object, name: str, least: int, most: int | None = None) -> None:
    """Raise IllegalArgumentError unless the attribute `name` is an integer from `least` to `most`."""
    value = getattr(config, name)
    if type(value) is not int or value < least or (most is not None and value > most):
        allowed = f"{least:,} or more" if most is None else f"{least:,} to {most:,}"
        raise IllegalArgumentError(f"{name} has to be an integer, {allowed}, not {value!r}")


def require_number(config: object, name: str, least: float | None = None) -> None:
    """Raise IllegalArgumentError unless the attribute `name` is a number of at least `least`, or above 0."""
    value = getattr(config, name)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not (value > 0 if least is None else value >= least):
        allowed = "above 0" if least is None else f"of at least {least}"
        raise IllegalArgumentError(f"{name} has to be a number {allowed}, not {value!r}")


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Durations are in seconds. Raises IllegalArgumentError for values that make no sense.

    `send_msg_timeout_s` is the budget of one call, over all its tries. `send_msg_max_timeout_per_request_s` bounds one
    try of it while another may follow on another broker; None leaves each try what is left of the budget.

    `compress_msg_body_over_howmuch` is the size from which on bodies are compressed; None sends all as they are.

    `client_async_semaphore_value` and `client_oneway_semaphore_value` bound how many sends of the kind are under way,
    and `back_pressure_for_async_send_size` how many bytes their bodies have together, for each kind.
    """

    send_msg_timeout_s: float = 3.0  # mechanism P4
    send_msg_max_timeout_per_request_s: float | None = None
    retry_times_when_send_failed: int = 2  # mechanism P5
    retry_times_when_send_async_failed: int = 2  # mechanism P6
    retry_another_broker_when_not_store_ok: bool = False
    send_latency_fault_enable: bool = False  # mechanism P11
    compress_msg_body_over_howmuch: int | None = 4_096
    compress_level: int = 5
    max_message_size: int = BODY_BYTES_MAX  # mechanism M7; for a batch, of all its records
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


@dataclass(frozen=True, slots=True)
class FlowControl:
    """Above any of these the queue is not pulled (mechanism C8).
    An orderly consumer has no span: `span_max` is None.
    """

    messages_max: int = 1_000
    bytes_max: int = 100 * 1024 * 1024
    span_max: int | None = 2_000


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Durations are in seconds. Raises IllegalArgumentError for values that make no sense.

    Between `consume_thread_min` and `consume_thread_max` listeners run at the same time, plain functions each in a
    thread of its own; the number grows by one every `adjust_thread_pool_interval_s` while more than
    `adjust_thread_pool_nums_threshold` messages wait in the consumer's queues, and shrinks when it is less than 80 %.

    `max_reconsume_times` None: the group's own number (16), and for an orderly consumer without end; 0: a message that
    fails once is a dead letter. A message that an orderly consumer could not consume is tried again after
    `suspend_current_queue_time_s`, and its queue waits.

    A concurrent listener that has not returned after `consume_timeout_s` (RocketMQ's 15 minutes) loses its messages:
    they are sent back and come again later, while the listener keeps its place among `consume_thread_max`. What it
    answers afterwards changes nothing.

    A broadcasting consumer keeps its offsets in `local_offset_store_dir`, and nowhere without `keep_local_offsets`: it
    begins anew at each start then, leaves nothing behind, and any number of them may run on one machine.

    `consume_timestamp_ms` (since 1970) is where a group begins with CONSUME_FROM_TIMESTAMP; None is half an hour ago.
    """

    consume_thread_min: int = 20
    consume_thread_max: int = 64
    adjust_thread_pool_nums_threshold: int = 100_000
    adjust_thread_pool_interval_s: float = 60.0  # mechanism L10
    consume_message_batch_max_size: int = 1  # mechanism C9
    pull_batch_size: int = 256
    pull_interval_s: float = 0.0
    pull_threshold_for_queue: int = 1_000  # mechanism C8, these three
    pull_threshold_size_for_queue_mib: int = 100
    consume_concurrently_max_span: int = 2_000
    max_reconsume_times: int | None = None
    consume_timeout_s: float = 900.0
    suspend_current_queue_time_s: float = 1.0
    consume_timestamp_ms: int | None = None
    local_offset_store_dir: Path | None = None
    keep_local_offsets: bool = True

    def __post_init__(self) -> None:
        for name in (
            "consume_thread_min",
            "adjust_thread_pool_nums_threshold",
            "consume_message_batch_max_size",
            "pull_threshold_for_queue",
            "pull_threshold_size_for_queue_mib",
            "consume_concurrently_max_span",
        ):
            require_integer(self, name, 1)
        require_integer(self, "consume_thread_max", self.consume_thread_min)
        require_integer(self, "pull_batch_size", 1, PULL_BATCH_SIZE_MAX)
        if self.max_reconsume_times is not None:
            require_integer(self, "max_reconsume_times", 0)
        if self.consume_timestamp_ms is not None:
            require_integer(self, "consume_timestamp_ms", 0)
        require_number(self, "pull_interval_s", 0.0)
        require_number(self, "consume_timeout_s")
        require_number(self, "suspend_current_queue_time_s", 0.01)  # RocketMQ's least, too
        require_number(self, "adjust_thread_pool_interval_s", 0.01)

    def flow_control(self, *, orderly: bool) -> FlowControl:
        """When a queue is not pulled; the span matters to concurrent consumers only, as in RocketMQ."""
        return FlowControl(
            self.pull_threshold_for_queue,
            self.pull_threshold_size_for_queue_mib * MEBIBYTE,
            None if orderly else self.consume_concurrently_max_span,
        )
