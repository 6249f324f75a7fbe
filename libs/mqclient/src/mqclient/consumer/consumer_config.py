"""What can be set about a push consumer, checked once. RocketMQ's names and defaults, in Python spelling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mqclient.config import require_integer, require_number
from mqclient.consumer.process_queue import FlowControl

MEBIBYTE = 1024 * 1024
PULL_BATCH_SIZE_MAX = 1_024  # what a broker gives at once


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
    adjust_thread_pool_interval_s: float = 60.0  # MISSION L10
    consume_message_batch_max_size: int = 1  # MISSION C9
    pull_batch_size: int = 256
    pull_interval_s: float = 0.0
    pull_threshold_for_queue: int = 1_000  # MISSION C8, these three
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
