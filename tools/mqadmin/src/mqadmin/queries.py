"""queryMsgByKey, queryMsgById, queryMsgByUniqueKey: messages found again (MISSION Q1)."""

from __future__ import annotations

from typing import Annotated

import typer

from mqadmin import exits
from mqadmin.errors import say
from mqadmin.messages import message_fields, message_table, messages_table
from mqadmin.options import NO_VALUE, AsJson, Begin, Cluster, End, NameServers, Topic
from mqadmin.output import show
from mqadmin.targets import broker_names_of
from mqadmin.times import parse_time
from mqadmin.world import World
from mqclient import Admin, MessageExt

commands = typer.Typer()
PANEL = "Messages"
MESSAGES_DEFAULT = 64  # RocketMQ's queryMsgByKey
MESSAGES_MAX = 2_000  # MISSION Q1

Key = Annotated[str, typer.Option("-k", "--msgKey", metavar="KEY", help="One of the message's keys.")]
MessageId = Annotated[str, typer.Option("-i", "--msgId", metavar="ID", help="The id by position (offset id).")]
UniqueKey = Annotated[str, typer.Option("-i", "--msgId", metavar="ID", help="The producer's unique id.")]
MaxNum = Annotated[
    int, typer.Option("-m", "--maxNum", metavar="N", min=1, max=MESSAGES_MAX, help="The newest N messages.")
]
OfTopic = Annotated[str | None, typer.Option("-t", "--topic", metavar="TOPIC", help="The topic that it has to be of.")]
ShowAll = Annotated[
    bool, typer.Option("-a", "--showAll", metavar=NO_VALUE, help="Every copy, not only the first one stored.")
]


@commands.command("queryMsgByKey", rich_help_panel=PANEL)
def query_by_key(
    context: typer.Context,
    *,
    topic: Topic,
    key: Key,
    name_servers: NameServers,
    begin: Begin = None,
    end: End = None,
    max_messages: MaxNum = MESSAGES_DEFAULT,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """The messages of a topic that have a key, newest first."""
    world = World.of(context)
    now_ms = world.clock.wall_ms()
    begin_ms = 0 if begin is None else parse_time(begin, now_ms)
    end_ms = 0 if end is None else parse_time(end, now_ms)

    async def question(admin: Admin) -> list[MessageExt]:
        found = await admin.query_message(topic, key, max_messages=max_messages, begin_ms=begin_ms, end_ms=end_ms)
        return await _of_cluster(admin, found, cluster)

    messages = world.ask(name_servers, question)
    document = {"messages": [message_fields(message) for message in messages]}
    show(document, messages_table(messages), as_json=as_json)
    _end(messages, f"no message of topic {topic} has the key {key!r}")


@commands.command("queryMsgById", rich_help_panel=PANEL)
def query_by_id(
    context: typer.Context,
    *,
    message_id: MessageId,
    name_servers: NameServers,
    topic: OfTopic = None,
    as_json: AsJson = False,
) -> None:
    """The message at the place in a broker's log that an offset id names."""

    async def question(admin: Admin) -> MessageExt:
        message = await admin.view_message(message_id)
        names = {one.address: one.broker_name for one in await admin.cluster_list()}
        message.broker_name = names.get(message.broker_name, message.broker_name)  # until here, its address
        return message

    message = World.of(context).ask(name_servers, question)
    messages = [message] if topic in (None, message.topic, message.message_queue.topic) else []
    _show_whole(messages, as_json=as_json)
    _end(messages, f"the message {message_id} is of topic {message.topic}, not of {topic}")


@commands.command("queryMsgByUniqueKey", rich_help_panel=PANEL)
def query_by_unique_key(
    context: typer.Context,
    *,
    topic: Topic,
    unique_key: UniqueKey,
    name_servers: NameServers,
    show_all: ShowAll = False,
    cluster: Cluster = None,
    as_json: AsJson = False,
) -> None:
    """The message of a topic that a producer gave this id; several when it was sent again."""

    async def question(admin: Admin) -> list[MessageExt]:
        return await _of_cluster(admin, await admin.query_message_by_unique_key(topic, unique_key), cluster)

    found = World.of(context).ask(name_servers, question)
    messages = found if show_all else found[-1:]  # newest first
    _show_whole(messages, as_json=as_json)
    _end(messages, f"no message of topic {topic} has the id {unique_key!r}")


async def _of_cluster(admin: Admin, messages: list[MessageExt], cluster: str | None) -> list[MessageExt]:
    names = await broker_names_of(admin, cluster)
    return [message for message in messages if names is None or message.broker_name in names]


def _show_whole(messages: list[MessageExt], *, as_json: bool) -> None:
    document = {"messages": [message_fields(message) for message in messages]}
    show(document, *(message_table(message) for message in messages), as_json=as_json)


def _end(messages: list[MessageExt], sentence: str) -> None:
    """Raises typer.Exit with the sentence when nothing was found."""
    if not messages:
        say(sentence)
        raise typer.Exit(exits.NOT_FOUND)
