"""recallMessage, rescheduleMessage: messages that wait, taken back or given another time."""

from __future__ import annotations

from typing import Annotated

import typer

from mqadmin import exits
from mqadmin.asking_back import confirm
from mqadmin.errors import say
from mqadmin.options import AsJson, DelayMs, DeliverAt, NameServers, Topic, Yes
from mqadmin.output import Table, show
from mqadmin.queries import PANEL
from mqadmin.times import parse_moment, time_fields, time_text
from mqadmin.world import World
from mqclient import RecallOutcome, RecallResult

commands = typer.Typer()

Key = Annotated[str | None, typer.Option("-k", "--msgKey", metavar="KEY", help="One of the messages' keys.")]
MessageId = Annotated[str | None, typer.Option("-i", "--msgId", metavar="ID", help="The producer's unique id.")]


@commands.command("recallMessage", rich_help_panel=PANEL)
def recall_message(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    key: Key = None,
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
    _show(result, topic, key, message_id, as_json=as_json)
    _end(result, RecallOutcome.REMOVED, f"of topic {topic} with the {which}")


@commands.command("rescheduleMessage", rich_help_panel=PANEL)
def reschedule_message(
    context: typer.Context,
    *,
    topic: Topic,
    name_servers: NameServers,
    key: Key = None,
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
    _show(result, topic, key, message_id, as_json=as_json)
    _end(result, RecallOutcome.RESCHEDULED, f"of topic {topic} with the {which}")


def _which(key: str | None, message_id: str | None) -> str:
    """The messages, in words. Raises BadParameter unless they are named one way."""
    if (key is None) == (message_id is None):
        raise typer.BadParameter("name the messages by a key with -k or by an id with -i, one of the two")
    return f"key {key!r}" if key is not None else f"id {message_id!r}"


def _show(result: RecallResult, topic: str, key: str | None, message_id: str | None, *, as_json: bool) -> None:
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


def _end(result: RecallResult, wanted: RecallOutcome, which: str) -> None:
    """Raises typer.Exit with a sentence unless all messages are as `wanted`."""
    if result.outcome is RecallOutcome.UNKNOWN:
        say(f"no message {which} waits or has waited on {', '.join(result.broker_names)}")
        raise typer.Exit(exits.NOT_FOUND)
    if result.outcome is not wanted:
        count = sum(message.outcome is result.outcome for message in result.messages)
        what = "delivered" if result.outcome is RecallOutcome.ALREADY_DELIVERED else "taken back"
        say(f"{count} of {len(result.messages)} messages {which} had been {what} already")
        raise typer.Exit(exits.FAILED)
