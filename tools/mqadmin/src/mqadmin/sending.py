"""sendMessage, recallMessage, rescheduleMessage: one message sent, and what waits taken back or given another time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mqadmin.errors import EXIT_FAILED, EXIT_NOT_FOUND, confirm, say
from mqadmin.messages import PANEL
from mqadmin.options import AsJson, DelayMs, DeliverAt, NameServers, Topic, Yes
from mqadmin.output import Table, parse_moment, show, time_fields, time_text
from mqadmin.world import World
from mqclient import IllegalArgumentError, Message, MessageQueue, Producer, RecallOutcome, RecallResult, SendResult

PRODUCER_GROUP = "mqadmin"
FILE_SIGN = "@"

commands = typer.Typer()

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


WaitingKey = Annotated[str | None, typer.Option("-k", "--msgKey", metavar="KEY", help="One of the messages' keys.")]
MessageId = Annotated[str | None, typer.Option("-i", "--msgId", metavar="ID", help="The producer's unique id.")]


@commands.command("recallMessage", rich_help_panel=PANEL)
def recall_message(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    key: WaitingKey = None,
    message_id: MessageId = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take back the messages of a topic that have a key, or the one with an id, while they wait."""
    which = _which(key, message_id)
    confirm(f"Take back what waits of topic {topic} with the {which}?", yes=yes)
    result = World.of(context).ask(
        name_servers, lambda admin: admin.recall_message(topic, key=key, message_id=message_id)
    )
    _show_recall(result, topic, key, message_id, as_json=as_json)
    _end_recall(result, RecallOutcome.REMOVED, f"of topic {topic} with the {which}")


@commands.command("rescheduleMessage", rich_help_panel=PANEL)
def reschedule_message(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    key: WaitingKey = None,
    message_id: MessageId = None,
    delay_ms: DelayMs = None,
    deliver_at: DeliverAt = None,
    as_json: AsJson = False,
) -> None:
    """Have the messages of a topic that have a key, or the one with an id, wait for another time."""
    which = _which(key, message_id)
    if (delay_ms is None) == (deliver_at is None):
        raise typer.BadParameter("give the new time with --delayMs or with --deliverAt, one of the two")
    world = World.of(context)
    moment = None if deliver_at is None else parse_moment(deliver_at, world.clock.wall_ms())
    result = world.ask(
        name_servers,
        lambda admin: admin.reschedule_message(
            topic, key=key, message_id=message_id, delay_ms=delay_ms, deliver_at=moment
        ),
    )
    _show_recall(result, topic, key, message_id, as_json=as_json)
    _end_recall(result, RecallOutcome.RESCHEDULED, f"of topic {topic} with the {which}")


def _which(key: str | None, message_id: str | None) -> str:
    """The messages, in words. Raises BadParameter unless they are named one way."""
    if (key is None) == (message_id is None):
        raise typer.BadParameter("name the messages by a key with -k or by an id with -i, one of the two")
    return f"key {key!r}" if key is not None else f"id {message_id!r}"


def _show_recall(result: RecallResult, topic: str, key: str | None, message_id: str | None, *, as_json: bool) -> None:
    document = {
        "topic": topic,
        "key": key,
        "message_id": message_id,
        "outcome": result.outcome.value,
        "broker_names": list(result.broker_names),
        "messages": [
            {
                "message_id": message.message_id,
                "broker_name": message.broker_name,
                "outcome": message.outcome.value,
                **time_fields("due_at", message.due_timestamp_ms),
            }
            for message in result.messages
        ],
    }
    rows = [
        (message.message_id, message.broker_name, message.outcome.value, time_text(message.due_timestamp_ms))
        for message in result.messages
    ]
    show(document, *([Table(("message id", "broker", "outcome", "due"), rows)] if rows else []), as_json=as_json)


def _end_recall(result: RecallResult, wanted: RecallOutcome, which: str) -> None:
    """Raises typer.Exit with a sentence unless all messages are as `wanted`."""
    if result.outcome is RecallOutcome.UNKNOWN:
        say(f"no message {which} waits or has waited on {', '.join(result.broker_names)}")
        raise typer.Exit(EXIT_NOT_FOUND)
    if result.outcome is not wanted:
        count = sum(message.outcome is result.outcome for message in result.messages)
        what = "delivered" if result.outcome is RecallOutcome.ALREADY_DELIVERED else "taken back"
        say(f"{count} of {len(result.messages)} messages {which} had been {what} already")
        raise typer.Exit(EXIT_FAILED)
