"""dlq list, dlq show: dead letters looked at; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from typing import Annotated

import typer

from mqadmin import exits
from mqadmin.dlq_letters import (
    ALL,
    EVERY_STATE,
    OPEN,
    Contains,
    LetterId,
    OfKey,
    OfTag,
    OfTopic,
    Since,
    Until,
    letter_fields,
    letters_table,
    named_letters,
    wanted_letters,
)
from mqadmin.errors import say
from mqadmin.messages import message_fields, message_table
from mqadmin.options import NO_VALUE, AsJson, Group, NameServers
from mqadmin.output import Table, show
from mqadmin.queries import MESSAGES_DEFAULT, MESSAGES_MAX
from mqadmin.times import time_fields, time_text
from mqadmin.world import World
from mqclient import (
    Admin,
    BrokerRefusedError,
    BrokerRejectedError,
    DeadLetter,
    DeadLetterFilter,
    DeadLetterMark,
    MessageExt,
)
from mqproto.names import DLQ_PREFIX

commands = typer.Typer()

OfGroup = Annotated[
    str | None, typer.Option("-g", "--groupName", metavar="GROUP", help="The consumer group; without it, all groups.")
]
MaxNum = Annotated[
    int, typer.Option("-m", "--maxNum", metavar="N", min=1, max=MESSAGES_MAX, help="Those dead for longest, at most N.")
]
ShowAll = Annotated[
    bool, typer.Option("-a", "--all", metavar=NO_VALUE, help="Also what was replayed or edited already.")
]
Originals = list[MessageExt] | None  # None when the broker cannot look for them
Told = tuple[DeadLetter, list[DeadLetterMark], Originals]


@commands.command("list")
def list_letters(
    context: typer.Context,
    *,
    name_servers: NameServers,
    group: OfGroup = None,
    topic: OfTopic = None,
    tag: OfTag = ALL,
    key: OfKey = None,
    since: Since = None,
    until: Until = None,
    contains: Contains = None,
    max_letters: MaxNum = MESSAGES_DEFAULT,
    show_all: ShowAll = False,
    as_json: AsJson = False,
) -> None:
    """The dead letters of a group, oldest first; without -g how many each group has."""
    world = World.of(context)
    states = EVERY_STATE if show_all else OPEN
    wanted = wanted_letters(
        world.clock.wall_ms(),
        topic=topic,
        tag=tag,
        key=key,
        since=since,
        until=until,
        contains=contains,
        states=states,
    )

    if group is None:
        counts = world.ask(name_servers, lambda admin: _count_letters(admin, wanted, max_letters))
        _show_counts(counts, max_letters, as_json=as_json)
        return

    async def question(admin: Admin) -> tuple[list[DeadLetter], bool]:
        letters: list[DeadLetter] = []
        async with aclosing(admin.dead_letters(group, wanted)) as found:
            async for letter in found:
                if len(letters) == max_letters:
                    return letters, True
                letters.append(letter)
        return letters, False

    letters, there_are_more = world.ask(name_servers, question)
    document = {
        "group": group,
        "there_are_more": there_are_more,
        "letters": [letter_fields(letter, with_body=False) for letter in letters],
    }
    show(document, *([letters_table(letters, with_state=show_all)] if letters else []), as_json=as_json)
    if there_are_more:
        say(f"there are more; these {max_letters} are dead for longest. -m takes up to {MESSAGES_MAX}, --since goes on")
    if not letters:
        say(f"group {group} has no such dead letters")
        raise typer.Exit(exits.NOT_FOUND)


async def _count_letters(admin: Admin, wanted: DeadLetterFilter, most: int) -> list[tuple[str, int, int]]:
    """(group, how many letters, since when the newest is dead) of each group that has some; counts end at `most`."""
    found = []
    for topic in await admin.topic_list():
        if not topic.startswith(DLQ_PREFIX):
            continue
        count, newest_ms, group = 0, 0, topic.removeprefix(DLQ_PREFIX)
        async with aclosing(admin.dead_letters(group, wanted)) as letters:
            async for letter in letters:
                count, newest_ms = count + 1, max(newest_ms, letter.dead_since_ms)
                if count == most:
                    break
        if count:
            found.append((group, count, newest_ms))
    return found


def _show_counts(counts: Sequence[tuple[str, int, int]], most: int, *, as_json: bool) -> None:
    document = {
        "groups": [
            {
                "group": group,
                "letter_count": count,
                "there_are_more": count == most,
                **time_fields("newest_at", newest_ms),
            }
            for group, count, newest_ms in counts
        ]
    }
    rows = [(group, f"{count}{'+' * (count == most)}", time_text(newest_ms)) for group, count, newest_ms in counts]
    show(document, *([Table(("group", "dead letters", "newest dead since"), rows)] if rows else []), as_json=as_json)
    if not counts:
        say("no group has such dead letters")
        raise typer.Exit(exits.NOT_FOUND)


@commands.command("show")
def show_letter(
    context: typer.Context, *, group: Group, letter_id: LetterId, name_servers: NameServers, as_json: AsJson = False
) -> None:
    """Everything about a dead letter, what was done with it, and whether its topic still has the message."""

    async def question(admin: Admin) -> list[Told]:
        return [
            (letter, await admin.dead_letter_marks(letter), await _originals(admin, letter))
            for letter in await named_letters(admin, group, [letter_id])
        ]

    told = World.of(context).ask(name_servers, question)
    document = {
        "letters": [
            {
                **letter_fields(letter),
                "done": [
                    {"done": mark.state.value, **time_fields("at", mark.timestamp_ms), "detail": mark.sentence}
                    for mark in marks
                ],
                "originals": None if originals is None else [message_fields(one, with_body=False) for one in originals],
            }
            for letter, marks, originals in told
        ]
    }
    show(document, *(_letter_table(*one) for one in told), as_json=as_json)


async def _originals(admin: Admin, letter: DeadLetter) -> Originals:
    """The message as it stands in the topic that it was sent to; several when it was sent again."""
    if not letter.topic or not letter.origin_message_id:
        return []
    try:
        return await admin.query_message_by_unique_key(letter.topic, letter.origin_message_id)
    except (BrokerRefusedError, BrokerRejectedError):  # it keeps no index
        return None


def _letter_table(letter: DeadLetter, marks: list[DeadLetterMark], originals: Originals) -> Table:
    places = ", ".join(f"{original.message_queue} offset {original.queue_offset}" for original in originals or ())
    nowhere = "not known: the broker cannot look for it" if originals is None else "the index finds it no more"
    rows = [
        ("group", letter.group),
        ("state", letter.state.value),
        ("original topic", letter.topic),
        ("original id", letter.origin_message_id),
        *([("failure", letter.failure), ("failed at", letter.failed_member)] if letter.failure else []),
        ("still there", places or nowhere),
        *([("edited from", f"the dead letter at offset {letter.replaces}")] if letter.replaces is not None else []),
        *((mark.state.value, f"{time_text(mark.timestamp_ms)}, {mark.sentence}") for mark in marks),
    ]
    table = message_table(letter.message)
    return Table(table.columns, [*rows, *table.rows])
