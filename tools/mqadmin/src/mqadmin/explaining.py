"""explain: the whole life of a message as one timeline, as far as the brokers know it.

What a broker cannot know is not said: an offset that has passed a message does not tell which member consumed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from mqadmin.errors import EXIT_NOT_FOUND, say
from mqadmin.messages import MESSAGES_MAX, PANEL
from mqadmin.options import AsJson, NameServers
from mqadmin.output import Table, duration_text, show, time_fields, time_text
from mqadmin.world import World
from mqclient import Admin, BrokerRejectedError, BrokerUnavailableError, MessageExt, MessageQueue
from mqclient.admin import ConsumeStats, LifeEvent, LifeEventKind
from mqproto.codes import ResponseCode
from mqproto.names import (
    CARRIED_TOPIC,
    CHECK_MAX_TIMES_TOPIC,
    HALF_TOPIC,
    OP_HALF_TOPIC,
    RECALLED_TOPIC,
    SCHEDULE_TOPIC,
    TIMER_TOPIC,
)
from mqproto.properties import REAL_TOPIC, RETRY_TOPIC

MESSAGES_DEFAULT = 32

commands = typer.Typer()

Kind = LifeEventKind
LABELS: Mapping[LifeEventKind, str] = {
    Kind.SENT: "sent",
    Kind.HALF: "half",
    Kind.COMMITTED: "committed",
    Kind.ROLLED_BACK: "rolled back",
    Kind.PARKED: "parked",
    Kind.WAITING: "waiting",
    Kind.DELIVERED: "delivered",
    Kind.RETRIED: "retried",
    Kind.DEAD: "dead",
    Kind.CONSUMED: "passed",
    Kind.UNCONSUMED: "not yet",
    Kind.RECALLED: "recalled",
}
OWN_PLACES: Mapping[str, str] = {
    HALF_TOPIC: "half topic",
    OP_HALF_TOPIC: "op topic",
    CHECK_MAX_TIMES_TOPIC: "parked half topic",
    TIMER_TOPIC: "timer",
    CARRIED_TOPIC: "carried topic",
    RECALLED_TOPIC: "recalled topic",
}
ENDS = {Kind.COMMITTED, Kind.ROLLED_BACK, Kind.PARKED}
ENDS_OF_A_WAIT = {Kind.DELIVERED, Kind.RECALLED, Kind.WAITING}  # another wait follows a new time
STANDINGS = {Kind.CONSUMED, Kind.UNCONSUMED}  # how a group stands to the message now

Standing = tuple[str, str]  # group and topic


@dataclass(frozen=True, slots=True)
class Life:
    """One message: its events in order, and the message itself when it can still be read."""

    events: Sequence[LifeEvent]
    message: MessageExt | None = None

    @property
    def message_id(self) -> str:
        """The unique id; empty for a message that has none."""
        return self.events[0].message_id

    def first(self, *kinds: LifeEventKind) -> LifeEvent | None:
        """The first event of these kinds."""
        return next((event for event in self.events if event.kind in kinds), None)


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
        raise typer.Exit(EXIT_NOT_FOUND)


async def _message(admin: Admin, event: LifeEvent) -> MessageExt | None:
    """The message as the event's record has it; None when that cannot be read any more, or may not."""
    try:
        result = await admin.pull(queue_of(event), event.queue_offset, max_messages=1)
    except (BrokerUnavailableError, BrokerRejectedError):
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


def lives_of(events: Sequence[LifeEvent]) -> list[Life]:
    """The messages that the events tell of, each with its own, in the order of their beginnings."""
    grouped: dict[object, list[LifeEvent]] = {}
    for event in events:
        grouped.setdefault(event.message_id or (event.broker_name, event.log_offset), []).append(event)
    return [Life(of_one) for of_one in grouped.values()]


def queue_of(event: LifeEvent) -> MessageQueue:
    """Where the record stands that tells the event."""
    return MessageQueue(event.topic, event.broker_name, event.queue_id)


def standing_of(event: LifeEvent) -> Standing:
    """Whose offset the event is about, and in which topic."""
    return event.group, event.topic


def delay_level(event: LifeEvent) -> int | None:
    """The level in whose queue the record of the event waits."""
    return event.queue_id + 1 if event.topic == SCHEDULE_TOPIC else None


def origin_topic(message: MessageExt) -> str:
    """The topic that the message was sent to, wherever the record stands."""
    return message.properties.get(RETRY_TOPIC) or message.properties.get(REAL_TOPIC) or message.topic


def life_table(life: Life, stats: Mapping[Standing, ConsumeStats], now_ms: int) -> Table:
    """The timeline of one message."""
    return Table(
        ("time", "event", "where", "detail"),
        [
            (
                time_text(event.timestamp_ms) if event.timestamp_ms else "now",
                LABELS[event.kind],
                f"{_place(event)} #{event.queue_offset}",
                detail(event, life, stats.get(standing_of(event)), now_ms),
            )
            for event in life.events
        ],
        title=_title(life),
    )


def _title(life: Life) -> str:
    parts = [f"message {life.message_id or 'without a unique id'}"]
    if (message := life.message) is not None:
        parts.append(f"topic {origin_topic(message)}")
        parts += [f"tag {message.tag}"] if message.tag else []
        parts += [f"keys {' '.join(message.keys)}"] if message.keys else []
        parts.append(f"{len(message.body)} bytes")
    return ", ".join(parts)


def detail(event: LifeEvent, life: Life, stats: ConsumeStats | None, now_ms: int) -> str:
    """What there is to say about the event beside its time and place."""
    match event.kind:
        case Kind.SENT:
            return "visible at once"
        case Kind.HALF:
            return f"by producer group {event.group}" + ("" if life.first(*ENDS) else "; no end of it is known")
        case Kind.COMMITTED:
            return f"visible{_after_half(event, life)}"
        case Kind.ROLLED_BACK:
            return f"never visible{_after_half(event, life)}"
        case Kind.PARKED:
            return f"no check knew its outcome: rolled back{_after_half(event, life)}"
        case Kind.WAITING:
            return _until(event, life, now_ms)
        case Kind.DELIVERED:
            return f"{_again(event)}{_lateness(event)}"
        case Kind.RECALLED:
            return "taken back while it waited: never delivered"
        case Kind.RETRIED:
            return f"group {event.group}, after try {event.reconsume_times}; {_until(event, life, now_ms)}"
        case Kind.DEAD:
            return f"group {event.group} gave it up after {event.reconsume_times} tries"
        case _:
            return f"group {event.group}: {_standing(event, stats)}"


def _place(event: LifeEvent) -> str:
    """Where the record stands; the queue's own topics by what they are for."""
    level = delay_level(event)
    own = OWN_PLACES.get(event.topic) if level is None else f"level {level}"
    return f"{own} of {event.broker_name}" if own else str(queue_of(event))


def _after_half(event: LifeEvent, life: Life) -> str:
    half = life.first(Kind.HALF)
    if half is None or not event.timestamp_ms:
        return ""
    return f", {duration_text(max(0, event.timestamp_ms - half.timestamp_ms))} after the half"


def _until(event: LifeEvent, life: Life, now_ms: int) -> str:
    if not event.due_timestamp_ms:
        return "due at once"
    due = time_text(event.due_timestamp_ms, beside_ms=event.timestamp_ms)
    over = any(
        one.kind in ENDS_OF_A_WAIT and one.timestamp_ms >= event.timestamp_ms and one.log_offset > event.log_offset
        for one in life.events
    )
    return f"was due {due}" if now_ms > event.due_timestamp_ms and not over else f"until {due}"


def _again(event: LifeEvent) -> str:
    return f"to group {event.group} for try {event.reconsume_times + 1}, " if event.group else ""


def _lateness(event: LifeEvent) -> str:
    late_ms = lateness_ms(event)
    if late_ms is None:
        return "its wait is not in the log any more"
    if late_ms < 0:
        return "before it was promised: its level has become shorter"
    return f"{duration_text(late_ms)} late" if late_ms else "when it was due"


def lateness_ms(event: LifeEvent) -> int | None:
    """Delivered minus due; None for another event, and when it is not known any more when it was due."""
    known = event.kind is Kind.DELIVERED and event.due_timestamp_ms
    return event.timestamp_ms - event.due_timestamp_ms if known else None


def group_offset(event: LifeEvent, stats: ConsumeStats | None) -> int | None:
    """The offset of the event's group in the queue of the event; None when there is none, or it is not known."""
    offsets = {one.queue: one.consumer_offset for one in stats.queues} if stats else {}
    offset = offsets.get(queue_of(event), -1)
    return None if offset < 0 else offset


def _standing(event: LifeEvent, stats: ConsumeStats | None) -> str:
    offset = group_offset(event, stats)
    if offset is None:
        where = "offset not known" if event.kind is Kind.CONSUMED else "no offset here"
    else:
        before = event.queue_offset - offset
        where = f"offset {offset}" + (f", {before} before it" if before > 0 else "")
    members = len(stats.client_ids) if stats else 0
    return f"{where}; {members or 'no'} {'member' if members == 1 else 'members'}"


def life_fields(life: Life, stats: Mapping[Standing, ConsumeStats]) -> dict[str, Any]:
    """The message in a JSON document."""
    message = life.message
    return {
        "message_id": life.message_id,
        "topic": origin_topic(message) if message else None,
        "tag": message.tag if message else None,
        "keys": list(message.keys) if message else None,
        "body_size": len(message.body) if message else None,
        "events": [_event_fields(event, stats.get(standing_of(event))) for event in life.events],
    }


def _event_fields(event: LifeEvent, stats: ConsumeStats | None) -> dict[str, Any]:
    is_standing = event.kind in STANDINGS
    return {
        **time_fields("at", event.timestamp_ms),
        "kind": event.kind.name.lower(),
        "broker_name": event.broker_name,
        "topic": event.topic,
        "queue_id": event.queue_id,
        "queue_offset": event.queue_offset,
        "log_offset": event.log_offset,
        "group": event.group or None,
        "delay_level": delay_level(event),
        **time_fields("due_at", event.due_timestamp_ms),
        "late_ms": lateness_ms(event),
        "reconsume_times": event.reconsume_times or None,
        "group_offset": group_offset(event, stats) if is_standing else None,
        "client_ids": list(stats.client_ids) if stats and is_standing else None,
    }
