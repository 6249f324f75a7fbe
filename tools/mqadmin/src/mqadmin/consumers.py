"""Consumers: their members, and what a group consumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from mqadmin.errors import EXIT_FAILED, EXIT_NOT_FOUND, SENSELESS, say
from mqadmin.groups import PANEL
from mqadmin.options import AsJson, Group, NameServers
from mqadmin.output import Table, show, time_fields, time_text
from mqadmin.world import World
from mqclient import Admin, MQClientError
from mqclient.admin import (
    ConsumerConnection,
    ConsumerData,
    ConsumeResult,
    ConsumerRunningInfo,
    ProcessQueueInfo,
)


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


commands = typer.Typer()

OneClient = Annotated[
    str | None, typer.Option("-i", "--clientId", metavar="ID", help="Only this member, queue by queue.")
]
Client = Annotated[
    str, typer.Option("-d", "--clientId", metavar="ID", help="The member; consumerConnection names all.")
]
MessageId = Annotated[str, typer.Option("-i", "--msgId", metavar="ID", help="The id by position (offset id).")]

Members = tuple[list[ConsumerRunningInfo], list[tuple[str, MQClientError]]]  # answers, and failures


@commands.command("consumerConnection", rich_help_panel=PANEL)
def consumer_connection(
    context: typer.Context, *, group: Group, name_servers: NameServers, as_json: AsJson = False
) -> None:
    """The members of a group, their subscriptions, and the times of their last heartbeats."""
    connections = World.of(context).ask(name_servers, lambda admin: admin.consumer_connections(group))
    document = {"group": group, "members": [connection_fields(one) for one in connections]}
    show(document, connections_table(connections), as_json=as_json)
    _end_without_members(group, are_there=bool(connections))


@commands.command("consumerStatus", rich_help_panel=PANEL)
def consumer_status(
    context: typer.Context,
    *,
    group: Group,
    name_servers: NameServers,
    client_id: OneClient = None,
    as_json: AsJson = False,
) -> None:
    """The state of a group's members, as they report it: of all, or of one queue by queue."""

    async def question(admin: Admin) -> Members:
        if client_id is not None:
            return [await admin.consumer_running_info(group, client_id)], []
        return await _all_members(admin, group)

    members, failed = World.of(context).ask(name_servers, question)
    document = {
        "group": group,
        "members": [info_fields(one) for one in members],
        "failed": [{"client_id": one, "error": str(error)} for one, error in failed],
    }
    tables = [members_table(members)] if client_id is None else member_tables(members[0])
    show(document, *tables, as_json=as_json)
    for one, error in failed:
        say(f"{one}: {error}")
    if failed:
        raise typer.Exit(EXIT_FAILED)
    _end_without_members(group, are_there=bool(members))


async def _all_members(admin: Admin, group: str) -> Members:
    """A member that does not answer does not keep the others from being asked."""
    members, failed = [], []
    for connection in await admin.consumer_connections(group):
        try:
            members.append(await admin.consumer_running_info(group, connection.client_id))
        except SENSELESS:
            raise
        except MQClientError as error:
            failed.append((connection.client_id, error))
    return members, failed


@commands.command("consumeMessageDirectly", rich_help_panel=PANEL)
def consume_message_directly(
    context: typer.Context,
    *,
    group: Group,
    message_id: MessageId,
    client_id: Client,
    name_servers: NameServers,
    as_json: AsJson = False,
) -> None:
    """Have one member consume one message now, whatever the offsets say; no offset moves."""
    outcome = World.of(context).ask(
        name_servers, lambda admin: admin.consume_message_directly(group, client_id, message_id)
    )
    document = {
        "group": group,
        "client_id": client_id,
        "message_id": message_id,
        "result": outcome.result.name,
        "remark": outcome.remark,
        "spent_ms": outcome.spent_ms,
    }
    table = Table(
        ("client", "result", "ms", "remark"), [(client_id, outcome.result.name, outcome.spent_ms, outcome.remark)]
    )
    show(document, table, as_json=as_json)
    if outcome.result is not ConsumeResult.CR_SUCCESS:
        raise typer.Exit(EXIT_FAILED)


def _end_without_members(group: str, *, are_there: bool) -> None:
    """Raises typer.Exit with a sentence for a group without active members."""
    if not are_there:
        say(f"group {group} has no active members")
        raise typer.Exit(EXIT_NOT_FOUND)
