"""explain: the whole life of a message as one timeline, as far as the brokers know it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import typer

from mqadmin import exits
from mqadmin.errors import say
from mqadmin.lives import STANDINGS, Life, Standing, life_fields, life_table, lives_of, queue_of, standing_of
from mqadmin.options import AsJson, NameServers
from mqadmin.output import show
from mqadmin.queries import MESSAGES_MAX, PANEL
from mqadmin.world import World
from mqclient import Admin, BrokerRefusedError, BrokerRejectedError, ConsumeStats, LifeEvent, MessageExt
from mqproto.codes import ResponseCode

commands = typer.Typer()
MESSAGES_DEFAULT = 32

Key = Annotated[str, typer.Argument(metavar="KEY", help="One of the message's keys, or its unique id.")]
OfTopic = Annotated[
    str | None, typer.Option("-t", "--topic", metavar="TOPIC", help="Only messages of this topic, which is faster.")
]
MaxNum = Annotated[
    int, typer.Option("-m", "--maxNum", metavar="N", min=1, max=MESSAGES_MAX, help="The newest N messages.")
]
Told = tuple[list[Life], dict[Standing, ConsumeStats]]


@commands.command("explain", rich_help_panel=PANEL)
def explain(
    context: typer.Context,
    *,
    key: Key,
    name_servers: NameServers,
    topic: OfTopic = None,
    max_messages: MaxNum = MESSAGES_DEFAULT,
    as_json: AsJson = False,
) -> None:
    """The whole life of the messages with a key, as far as the brokers know it."""
    world = World.of(context)

    async def question(admin: Admin) -> Told:
        events = await admin.explain(key, topic=topic, max_messages=max_messages)
        lives = [replace(life, message=await _message(admin, life.events[0])) for life in lives_of(events)]
        return lives, await _standings(admin, events)

    lives, stats = world.ask(name_servers, question)
    document = {"key": key, "topic": topic, "messages": [life_fields(life, stats) for life in lives]}
    now_ms = world.clock.wall_ms()
    show(document, *(life_table(life, stats, now_ms) for life in lives), as_json=as_json)
    if not lives:
        say(f"no broker's log has a message with the key {key!r}{f' of topic {topic}' if topic else ''}")
        raise typer.Exit(exits.NOT_FOUND)


async def _message(admin: Admin, event: LifeEvent) -> MessageExt | None:
    """The message as the event's record has it; None when that cannot be read any more, or may not."""
    try:
        result = await admin.pull(queue_of(event), event.queue_offset, max_messages=1)
    except (BrokerRefusedError, BrokerRejectedError):
        return None
    return next((message for message in result.messages if message.log_offset == event.log_offset), None)


async def _standings(admin: Admin, events: Sequence[LifeEvent]) -> dict[Standing, ConsumeStats]:
    """How each group stands in the topics that the events speak of. A group that was deleted has no members."""
    stats: dict[Standing, ConsumeStats] = {}
    for group, topic in {standing_of(event) for event in events if event.kind in STANDINGS}:
        try:
            stats[group, topic] = await admin.consume_stats(group, topic)
        except BrokerRejectedError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
    return stats
