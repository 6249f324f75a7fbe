"""sendMessage: one message, to see that it arrives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mqadmin.options import AsJson, DelayMs, DeliverAt, NameServers, Topic
from mqadmin.output import Table, show
from mqadmin.queries import PANEL
from mqadmin.times import parse_moment
from mqadmin.world import World
from mqclient import IllegalArgumentError, Message, MessageQueue, Producer, SendResult

commands = typer.Typer()
PRODUCER_GROUP = "mqadmin"
FILE_SIGN = "@"

Body = Annotated[
    str,
    typer.Option(
        "-p", "--body", metavar="TEXT|@FILE", help="The body: text, or what a file holds; @@ begins text with @."
    ),
]
Key = Annotated[str | None, typer.Option("-k", "--key", metavar="KEYS", help="Keys, separated by spaces.")]
Tag = Annotated[str | None, typer.Option("-c", "--tags", metavar="TAG", help="The tag.")]
BrokerName = Annotated[str | None, typer.Option("-b", "--broker", metavar="NAME", help="To a queue of this broker.")]
QueueId = Annotated[int | None, typer.Option("-i", "--qid", metavar="ID", min=0, help="To this queue of the broker.")]
DelayLevel = Annotated[
    int, typer.Option("--delayLevel", metavar="LEVEL", min=0, help="To be delivered later, by a level; 0: at once.")
]


@commands.command("sendMessage", rich_help_panel=PANEL)
def send_message(
    context: typer.Context,
    *,
    topic: Topic,
    body: Body,
    name_servers: NameServers,
    key: Key = None,
    tag: Tag = None,
    broker_name: BrokerName = None,
    queue_id: QueueId = None,
    delay_level: DelayLevel = 0,
    delay_ms: DelayMs = None,
    deliver_at: DeliverAt = None,
    as_json: AsJson = False,
) -> None:
    """Send one message, and say where it is stored."""
    if queue_id is not None and broker_name is None:
        raise typer.BadParameter("-i is a queue of one broker: name the broker with -b")
    world = World.of(context)
    keys = (key or "").split()
    message = Message(
        topic,
        _body(world, body),
        tag=tag,
        keys=keys,
        delay_level=delay_level,
        delay_ms=delay_ms or 0,
        deliver_at=None if deliver_at is None else parse_moment(deliver_at, world.clock.wall_ms()),
    )

    def chosen(queues: Sequence[MessageQueue], _message: Message, _argument: Any) -> MessageQueue:
        for queue in queues:
            if queue.broker_name == broker_name and queue_id in (None, queue.queue_id):
                return queue
        which = "" if queue_id is None else f" {queue_id}"
        raise IllegalArgumentError(f"no queue{which} of {broker_name} can be written")

    async def send() -> SendResult:
        async with Producer(PRODUCER_GROUP, name_servers) as producer:
            return await producer.send(message, selector=None if broker_name is None else chosen)

    result: SendResult = world.run(send())
    document = {
        "send_status": result.send_status.value,
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "topic": result.message_queue.topic,
        "broker_name": result.message_queue.broker_name,
        "queue_id": result.message_queue.queue_id,
        "queue_offset": result.queue_offset,
        "log_offset": result.log_offset,
    }
    table = Table(
        ("broker", "queue", "offset", "send status", "message id"),
        [
            (
                result.message_queue.broker_name,
                result.message_queue.queue_id,
                result.queue_offset,
                result.send_status.value,
                result.message_id,
            )
        ],
    )
    show(document, table, as_json=as_json)


def _body(world: World, text: str) -> bytes:
    """The bytes to send. Raises BadParameter when the file cannot be read."""
    if not text.startswith(FILE_SIGN) or text.startswith(FILE_SIGN * 2):
        return text.removeprefix(FILE_SIGN).encode(errors="surrogateescape")
    return world.read_file(Path(text.removeprefix(FILE_SIGN)))
