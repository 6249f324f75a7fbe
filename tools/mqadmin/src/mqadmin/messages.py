"""How a message is shown, and the commands that find one again or read a topic, queue by queue (mechanism Q1).

queryMsgByKey, queryMsgById, queryMsgByUniqueKey, printMsg, consumeMessage. They move no offset.
"""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mqadmin.errors import EXIT_NOT_FOUND, say
from mqadmin.options import NO_VALUE, AsJson, Begin, Cluster, End, NameServers, Switch, Topic
from mqadmin.output import (
    HEX,
    UTF_8,
    JsonStream,
    Table,
    body_text,
    lines,
    parse_time,
    printable,
    show,
    time_fields,
    time_text,
)
from mqadmin.world import World, broker_names_of
from mqclient import Admin, MessageExt, MessageQueue, NoRouteError

BODY_INDENT = "    "
PANEL = "Messages"
MESSAGES_DEFAULT = 64  # RocketMQ's queryMsgByKey
MESSAGES_MAX = 2_000  # mechanism Q1
CONSUME_DEFAULT = 128  # RocketMQ's consumeMessage

commands = typer.Typer()

KNOWN_PROPERTIES = frozenset({"KEYS", "TAGS", "UNIQ_KEY"})  # shown by names of their own


def message_fields(message: MessageExt, *, charset: str = UTF_8, with_body: bool = True) -> dict[str, Any]:
    """The message in a JSON document."""
    queue = message.message_queue
    fields: dict[str, Any] = {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        "broker_name": queue.broker_name,
        "queue_topic": queue.topic,
        "queue_id": queue.queue_id,
        "queue_offset": message.queue_offset,
        "log_offset": message.log_offset,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
        **time_fields("born_at", message.born_timestamp_ms),
        **time_fields("stored_at", message.store_timestamp_ms),
        "body_size": len(message.body),
    }
    if with_body:
        fields["body"], fields["body_encoding"] = body_text(message.body, charset)
    return fields


def message_table(message: MessageExt, *, charset: str = UTF_8) -> Table:
    """Everything about one message, a row for each field."""
    text, encoding = body_text(message.body, charset)
    own = {name: value for name, value in message.properties.items() if name not in KNOWN_PROPERTIES}
    rows = {
        "message id": message.message_id,
        "offset id": message.offset_message_id,
        "topic": message.topic,
        "queue": f"{message.message_queue} offset {message.queue_offset}",
        "tag": message.tag or "",
        "keys": " ".join(message.keys),
        "born": time_text(message.born_timestamp_ms),
        "stored": f"{time_text(message.store_timestamp_ms)} at {message.log_offset}, {message.size} bytes",
        "tries": str(message.reconsume_times),
        "properties": ", ".join(f"{name}={value}" for name, value in own.items()),
        f"body ({'hex, ' if encoding == HEX else ''}{len(message.body)} bytes)": text,
    }
    return Table(("field", "value"), list(rows.items()))


def messages_table(messages: list[MessageExt]) -> Table:
    """Several messages, a row for each."""
    return Table(
        ("message id", "queue", "offset", "stored", "tag", "keys", "bytes"),
        [
            (
                message.message_id,
                str(message.message_queue),
                message.queue_offset,
                time_text(message.store_timestamp_ms),
                message.tag,
                " ".join(message.keys),
                len(message.body),
            )
            for message in messages
        ],
    )


def echo_message(message: MessageExt, *, charset: str = UTF_8, with_body: bool = True) -> None:
    """One message of a long list: a line that says what it is, and its body below it."""
    text, encoding = body_text(message.body, charset)
    parts = [
        f"{message.message_queue} offset {message.queue_offset}",
        time_text(message.store_timestamp_ms),
        f"id {message.message_id}",
        *([f"tag {message.tag}"] if message.tag else []),
        *([f"keys {' '.join(message.keys)}"] if message.keys else []),
        f"{len(message.body)} bytes{' as hex' if with_body and encoding == HEX else ''}",
    ]
    typer.echo(printable("  ".join(parts)))
    if with_body:
        for line in lines(text, BODY_INDENT):
            typer.echo(line)


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
        raise typer.Exit(EXIT_NOT_FOUND)


SubExpression = Annotated[
    str, typer.Option("-s", "--subExpression", metavar="TAGS", help="Only these tags: * or A || B.")
]
Charset = Annotated[str, typer.Option("-c", "--charsetName", metavar="CHARSET", help="What text the bodies are.")]
PrintBody = Annotated[Switch, typer.Option("-d", "--printBody", help="Whether to show the bodies.")]
BrokerName = Annotated[
    str | None, typer.Option("-b", "--brokerName", metavar="NAME", help="Only the queues of this broker.")
]
QueueId = Annotated[
    int | None, typer.Option("-i", "--queueId", metavar="ID", min=0, help="Only this queue of the broker.")
]
Offset = Annotated[
    int | None, typer.Option("-o", "--offset", metavar="OFFSET", min=0, help="From this offset of the queue on.")
]
ConsumeBegin = Annotated[
    str | None, typer.Option("-s", "--beginTimestamp", metavar="TIME", help="Stored at this time or later.")
]
MessageNumber = Annotated[
    int, typer.Option("-c", "--MessageNumber", metavar="N", min=1, help="At most so many messages.")
]
Show = Callable[[MessageExt], None]


@dataclass(frozen=True, slots=True)
class Stretch:
    """What to read of each queue: stored from `begin_ms` to before `end_ms`, from `offset` on; None: no bound."""

    begin_ms: int | None = None
    end_ms: int | None = None
    offset: int = 0


@commands.command("printMsg", rich_help_panel=PANEL)
def print_messages(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    sub_expression: SubExpression = "*",
    begin: Begin = None,
    end: End = None,
    charset: Charset = UTF_8,
    print_body: PrintBody = "true",
    as_json: AsJson = False,
) -> None:
    """Every message of a topic, queue by queue."""
    try:
        codecs.lookup(charset)
    except LookupError:
        raise typer.BadParameter(f"{charset!r} is no charset; write one such as UTF-8 or GBK") from None
    world = World.of(context)
    stretch = _stretch(begin, end, world.clock.wall_ms())

    async def question(admin: Admin, show: Show) -> None:
        for queue in (await admin.topic_route(topic)).subscribe_queues():
            async for message in _read(admin, queue, stretch, sub_expression):
                show(message)

    _show_each(world, name_servers, question, charset=charset, with_body=print_body == "true", as_json=as_json)


@commands.command("consumeMessage", rich_help_panel=PANEL)
def consume_messages(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    broker_name: BrokerName = None,
    queue_id: QueueId = None,
    offset: Offset = None,
    begin: ConsumeBegin = None,
    end: End = None,
    message_number: MessageNumber = CONSUME_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """The next messages of a topic, of a broker's queue, or from an offset on."""
    if queue_id is not None and broker_name is None:
        raise typer.BadParameter("-i is a queue of one broker: name the broker with -b")
    if offset is not None and queue_id is None:
        raise typer.BadParameter("-o is an offset of one queue: name the queue with -b and -i")
    world = World.of(context)
    stretch = _stretch(begin, end, world.clock.wall_ms(), offset or 0)

    async def question(admin: Admin, show: Show) -> None:
        queues = [
            queue
            for queue in (await admin.topic_route(topic)).subscribe_queues()
            if broker_name in (None, queue.broker_name) and queue_id in (None, queue.queue_id)
        ]
        if not queues:
            raise NoRouteError(f"no registered broker has such a queue of topic {topic!r}")
        left = message_number
        for queue in queues:
            async for message in _read(admin, queue, stretch, "*"):
                show(message)
                left -= 1
                if not left:
                    return

    _show_each(world, name_servers, question, as_json=as_json)


def _stretch(begin: str | None, end: str | None, now_ms: int, offset: int = 0) -> Stretch:
    stretch = Stretch(
        None if begin is None else parse_time(begin, now_ms), None if end is None else parse_time(end, now_ms), offset
    )
    if stretch.begin_ms is not None and stretch.end_ms is not None and stretch.begin_ms > stretch.end_ms:
        raise typer.BadParameter("the begin lies after the end")
    return stretch


def _read(admin: Admin, queue: MessageQueue, stretch: Stretch, tag_expression: str) -> AsyncIterator[MessageExt]:
    return admin.read_queue(
        queue, offset=stretch.offset, begin_ms=stretch.begin_ms, end_ms=stretch.end_ms, expression=tag_expression
    )


def _show_each(
    world: World,
    name_servers: str,
    question: Callable[[Admin, Show], Awaitable[None]],
    *,
    charset: str = UTF_8,
    with_body: bool = True,
    as_json: bool,
) -> None:
    """Show each message as it comes."""
    if not as_json:
        world.ask(
            name_servers,
            lambda admin: question(admin, lambda message: echo_message(message, charset=charset, with_body=with_body)),
        )
        return
    with JsonStream("messages") as stream:
        world.ask(
            name_servers,
            lambda admin: question(
                admin, lambda message: stream.add(message_fields(message, charset=charset, with_body=with_body))
            ),
        )
