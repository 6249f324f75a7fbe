"""Members of consumer groups as rows of a table, and as fields of a JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mqadmin.output import Table
from mqadmin.times import time_fields, time_text
from mqclient import ConsumerConnection, ConsumerData, ConsumerRunningInfo, ProcessQueueInfo


def connections_table(connections: Sequence[ConsumerConnection]) -> Table:
    """One row a member."""
    return Table(
        ("client", "model", "order", "begins at", "subscriptions", "brokers", "last heartbeat"),
        [
            (
                one.client_id,
                *_words(one.data),
                ", ".join(one.broker_names),
                time_text(one.last_heartbeat_timestamp_ms),
            )
            for one in connections
        ],
    )


def connection_fields(connection: ConsumerConnection) -> dict[str, Any]:
    """A member as its heartbeat tells."""
    return {
        "client_id": connection.client_id,
        **_data_fields(connection.data),
        "broker_names": list(connection.broker_names),
        **time_fields("last_heartbeat_at", connection.last_heartbeat_timestamp_ms),
    }


def members_table(members: Sequence[ConsumerRunningInfo]) -> Table:
    """One row a member, with what all of its queues come to."""
    return Table(
        ("client", "queues", "cached", "cached bytes", "ok a second", "failed", "listeners", "suspended", "started"),
        [
            (
                one.client_id,
                len(one.queues),
                sum(queue.cached_messages for queue in one.queues),
                sum(queue.cached_bytes for queue in one.queues),
                _number(sum(stats.consume_ok_tps for stats in one.stats)),
                sum(stats.consume_failed_messages for stats in one.stats),
                one.consume_concurrency,
                one.suspended,
                time_text(one.start_timestamp_ms),
            )
            for one in members
        ],
    )


def member_tables(info: ConsumerRunningInfo) -> list[Table]:
    """The member itself, its queues, and its topics in the last minute."""
    model, order, begin, subscriptions = _words(info.data)
    about = Table(
        ("field", "value"),
        [
            ("client", info.client_id),
            ("model", model),
            ("order", order),
            ("begins at", begin),
            ("subscriptions", subscriptions),
            ("listeners at most", info.consume_concurrency),
            ("suspended", info.suspended),
            ("started", time_text(info.start_timestamp_ms)),
        ],
    )
    queues = Table(
        (
            *("topic", "broker", "queue", "commit offset", "pull offset", "cached", "cached bytes", "locked"),
            *("last pull", "last consumed"),
        ),
        [
            (
                one.queue.topic,
                one.queue.broker_name,
                one.queue.queue_id,
                one.commit_offset,
                one.pull_offset,
                one.cached_messages,
                one.cached_bytes,
                one.locked,
                time_text(one.last_pull_timestamp_ms),
                time_text(one.last_consume_timestamp_ms),
            )
            for one in info.queues
        ],
    )
    topics = Table(
        ("topic", "pull ms", "pulled a second", "consume ms", "ok a second", "failed a second", "failed"),
        [
            (
                one.topic,
                _number(one.pull_rt_ms),
                _number(one.pull_tps),
                _number(one.consume_rt_ms),
                _number(one.consume_ok_tps),
                _number(one.consume_failed_tps),
                one.consume_failed_messages,
            )
            for one in info.stats
        ],
    )
    return [about, queues, topics]


def info_fields(info: ConsumerRunningInfo) -> dict[str, Any]:
    """A member as it is now."""
    return {
        "client_id": info.client_id,
        **_data_fields(info.data),
        **time_fields("started_at", info.start_timestamp_ms),
        "consume_concurrency": info.consume_concurrency,
        "suspended": info.suspended,
        "queues": [_queue_fields(one) for one in info.queues],
        "stats": [asdict(one) for one in info.stats],
    }


def _queue_fields(info: ProcessQueueInfo) -> dict[str, Any]:
    return {
        "topic": info.queue.topic,
        "broker_name": info.queue.broker_name,
        "queue_id": info.queue.queue_id,
        "commit_offset": info.commit_offset,
        "pull_offset": info.pull_offset,
        "cached_messages": info.cached_messages,
        "cached_bytes": info.cached_bytes,
        "locked": info.locked,
        **time_fields("last_pull_at", info.last_pull_timestamp_ms),
        **time_fields("last_consume_at", info.last_consume_timestamp_ms),
    }


def _data_fields(data: ConsumerData) -> dict[str, Any]:
    return {
        "message_model": data.message_model.value,
        "orderly": data.orderly,
        "consume_from_where": data.consume_from_where.value,
        "subscriptions": [asdict(one) for one in data.subscriptions],
    }


def _words(data: ConsumerData) -> tuple[str, str, str, str]:
    """Model, order, beginning and subscriptions, for people."""
    subscriptions = ", ".join(f"{one.topic}: {one.expression}" for one in data.subscriptions)
    begin = data.consume_from_where.value.removeprefix("CONSUME_FROM_").lower().replace("_", " ")
    return data.message_model.value.lower(), "in order" if data.orderly else "concurrent", begin, subscriptions


def _number(value: float) -> str:
    return f"{value:.4g}"
