"""consumerConnection, consumerStatus, consumeMessageDirectly: the living members of a group (MISSION L11-L13)."""

from __future__ import annotations

from typing import Annotated

import typer

from mqadmin import exits
from mqadmin.consumer_views import (
    connection_fields,
    connections_table,
    info_fields,
    member_tables,
    members_table,
)
from mqadmin.errors import SENSELESS, say
from mqadmin.groups import PANEL
from mqadmin.options import AsJson, Group, NameServers
from mqadmin.output import Table, show
from mqadmin.world import World
from mqclient import Admin, ConsumeResult, ConsumerRunningInfo, MQClientError

commands = typer.Typer()

OneClient = Annotated[
    str | None, typer.Option("-i", "--clientId", metavar="ID", help="Only this member, queue by queue.")
]
Client = Annotated[
    str, typer.Option("-d", "--clientId", metavar="ID", help="The member; consumerConnection names all.")
]
MessageId = Annotated[str, typer.Option("-i", "--msgId", metavar="ID", help="The id by position (offset id).")]

Members = tuple[list[ConsumerRunningInfo], list[tuple[str, MQClientError]]]  # who answered, and who did not


@commands.command("consumerConnection", rich_help_panel=PANEL)
def consumer_connection(
    context: typer.Context, *, group: Group, name_servers: NameServers, as_json: AsJson = False
) -> None:
    """Who the members of a group are, what they subscribe to, and when they last said so."""
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
    """How the members of a group are, as they say themselves: all of them, or one queue by queue."""

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
        raise typer.Exit(exits.FAILED)
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
        raise typer.Exit(exits.FAILED)


def _end_without_members(group: str, *, are_there: bool) -> None:
    """Raises typer.Exit with a sentence when nobody lives."""
    if not are_there:
        say(f"no member of group {group} lives")
        raise typer.Exit(exits.NOT_FOUND)
