"""printMsg, consumeMessage: the messages of a topic, queue by queue. Nobody's offset moves."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from mqadmin.bodies import UTF_8
from mqadmin.messages import echo_message, message_fields
from mqadmin.options import AsJson, Begin, End, NameServers, Switch, Topic
from mqadmin.output import JsonStream
from mqadmin.queries import PANEL
from mqadmin.times import parse_time
from mqadmin.world import World
from mqclient import Admin, MessageExt, MessageQueue, NoRouteError

commands = typer.Typer()
CONSUME_DEFAULT = 128  # RocketMQ's consumeMessage

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
            raise NoRouteError(f"no living broker has such a queue of topic {topic!r}")
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
