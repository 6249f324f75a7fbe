"""dlq list, dlq show, dlq edit: the dead letters of a group, looked at and changed (mechanism R2).

`dlq_replay` adds the command that sends them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import typer

from mqadmin.errors import EXIT_FAILED, EXIT_NOT_FOUND, say
from mqadmin.messages import MESSAGES_DEFAULT, MESSAGES_MAX, message_fields, message_table
from mqadmin.options import NO_VALUE, AsJson, Group, NameServers
from mqadmin.output import Table, body_text, parse_time, show, time_fields, time_text
from mqadmin.world import World
from mqclient import Admin, BrokerRejectedError, BrokerUnavailableError, MessageExt, SendResult
from mqclient.admin import DeadLetter, DeadLetterFilter, DeadLetterMark, DeadLetterState
from mqproto.names import DLQ_PREFIX

PREVIEW_CHARACTERS = 40
ALL = "*"

commands = typer.Typer(help="Dead letters: list, show, edit, replay.")


OPEN = frozenset({DeadLetterState.OPEN})
OPEN_OR_REPLAYED = frozenset({DeadLetterState.OPEN, DeadLetterState.REPLAYED})
EVERY_STATE = frozenset(DeadLetterState)
DONE = {DeadLetterState.REPLAYED: "was replayed already", DeadLetterState.SUPERSEDED: "was edited: another replaces it"}

OfTopic = Annotated[
    str | None, typer.Option("-t", "--topic", metavar="TOPIC", help="Sent to this topic before they died.")
]
OfTag = Annotated[str, typer.Option("--tag", metavar="TAGS", help="Only these tags: * or A || B.")]
OfKey = Annotated[str | None, typer.Option("-k", "--key", metavar="KEY", help="With this among their keys.")]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Dead since this time or later.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Dead before this time.")]
Contains = Annotated[str | None, typer.Option("--contains", metavar="TEXT", help="With this text in the body.")]
LetterId = Annotated[
    str, typer.Option("-i", "--msgId", metavar="ID", help="The message's unique id, or the letter's id by position.")
]


@commands.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def wanted_letters(
    now_ms: int,
    *,
    topic: str | None,
    tag: str,
    key: str | None,
    since: str | None,
    until: str | None,
    contains: str | None,
    states: frozenset[DeadLetterState],
) -> DeadLetterFilter:
    """The filter that the options make. Raises BadParameter."""
    return DeadLetterFilter(
        topic=topic,
        expression=tag,
        key=key,
        begin_ms=None if since is None else parse_time(since, now_ms),
        end_ms=None if until is None else parse_time(until, now_ms),
        contains=(contains or "").encode(errors="surrogateescape"),
        states=states,
    )


async def named_letters(admin: Admin, group: str, ids: Sequence[str]) -> list[DeadLetter]:
    """The letters that the ids name, each once. Raises typer.Exit with a sentence when an id names none.

    A unique id names the open letters that have it, or, when there are none, the one that died last.
    """
    wanted = DeadLetterFilter(ids=frozenset(ids), states=EVERY_STATE)
    found = [letter async for letter in admin.dead_letters(group, wanted)]
    chosen: list[DeadLetter] = []
    for id_ in ids:
        of_id = [letter for letter in found if id_ in letter.ids]
        if not of_id:
            say(f"group {group} has no dead letter with the id {id_!r}")
            raise typer.Exit(EXIT_NOT_FOUND)
        is_open = [letter for letter in of_id if letter.state is DeadLetterState.OPEN]
        chosen += [letter for letter in is_open or of_id[-1:] if letter not in chosen]
    return chosen


def letter_fields(letter: DeadLetter, *, with_body: bool = True) -> dict[str, Any]:
    """The letter in a JSON document: the message as it stands in the dead-letter topic, and what it says beside."""
    return {
        **message_fields(letter.message, with_body=with_body),
        "body_start": preview(letter),
        "group": letter.group,
        "state": letter.state.value,
        "original_topic": letter.topic or None,
        "original_message_id": letter.origin_message_id or None,
        "failure": letter.failure or None,
        "failed_member": letter.failed_member or None,
        "replaces_queue_offset": letter.replaces,
    }


def letters_table(letters: Sequence[DeadLetter], *, with_state: bool) -> Table:
    """Several letters, a row for each."""
    state = ("state",) if with_state else ()
    return Table(
        ("message id", "topic", "tag", "keys", "tries", "dead since", *state, "bytes", "body"),
        [
            (
                letter.message.message_id,
                letter.topic,
                letter.message.tag,
                " ".join(letter.message.keys),
                letter.message.reconsume_times,
                time_text(letter.dead_since_ms),
                *((letter.state.value,) if with_state else ()),
                len(letter.message.body),
                preview(letter),
            )
            for letter in letters
        ],
    )


def preview(letter: DeadLetter) -> str:
    """How the body begins."""
    text, _ = body_text(letter.message.body)
    return text if len(text) <= PREVIEW_CHARACTERS else f"{text[:PREVIEW_CHARACTERS]}..."


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
        raise typer.Exit(EXIT_NOT_FOUND)


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
        raise typer.Exit(EXIT_NOT_FOUND)


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
    except (BrokerUnavailableError, BrokerRejectedError):  # it keeps no index
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


Body = Annotated[str | None, typer.Option("--body", metavar="TEXT", help="Another body.")]
BodyFile = Annotated[Path | None, typer.Option("--body-file", metavar="FILE", help="Another body: what a file holds.")]
Properties = Annotated[
    list[str] | None,
    typer.Option("--property", metavar="NAME=VALUE", help="A property, new or changed; may be given several times."),
]
Removed = Annotated[
    list[str] | None,
    typer.Option("--remove-property", metavar="NAME", help="Without this property; may be given several times."),
]
Tag = Annotated[str | None, typer.Option("--tag", metavar="TAG", help="Another tag; empty: none.")]
Keys = Annotated[str | None, typer.Option("--keys", metavar="KEYS", help="Other keys, separated by spaces.")]


@commands.command("edit")
def edit_letter(
    context: typer.Context,
    *,
    group: Group,
    letter_id: LetterId,
    name_servers: NameServers,
    body: Body = None,
    body_file: BodyFile = None,
    properties: Properties = None,
    removed: Removed = None,
    tag: Tag = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Store a changed dead letter, which takes the place of the one that is named. Nothing is sent to the group."""
    if body is not None and body_file is not None:
        raise typer.BadParameter("--body and --body-file are two bodies; give one of them")
    world = World.of(context)
    text = None if body is None else body.encode(errors="surrogateescape")
    changed_body = text if body_file is None else world.read_file(body_file)
    changed_properties = dict(map(_name_and_value, properties or ()))

    async def question(admin: Admin) -> tuple[DeadLetter, SendResult]:
        letter = _only_one(await named_letters(admin, group, [letter_id]), letter_id)
        result = await admin.edit_dead_letter(
            letter,
            body=changed_body,
            tag=tag,
            keys=None if keys is None else keys.split(),
            properties=changed_properties,
            removed_properties=removed or (),
        )
        return letter, result

    letter, result = world.ask(name_servers, question)
    place = result.message_queue
    document = {
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "broker_name": place.broker_name,
        "queue_id": place.queue_id,
        "queue_offset": result.queue_offset,
        "replaces_offset_message_id": letter.message.offset_message_id,
        "replaces_queue_offset": letter.message.queue_offset,
    }
    rows = [(result.message_id, str(place), result.queue_offset, letter.message.queue_offset)]
    show(document, Table(("message id", "queue", "offset", "replaces offset"), rows), as_json=as_json)


def _name_and_value(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"{text!r} is no property; write NAME=VALUE")
    return name, value


def _only_one(letters: list[DeadLetter], letter_id: str) -> DeadLetter:
    """Raises BadParameter when it is not one, and typer.Exit when something was done with it already."""
    if len(letters) > 1:
        ids = ", ".join(letter.message.offset_message_id for letter in letters)
        raise typer.BadParameter(
            f"{len(letters)} dead letters have the id {letter_id}; name one of them by its own: {ids}"
        )
    (letter,) = letters
    if letter.state is not DeadLetterState.OPEN:
        say(f"the dead letter {letter_id} {DONE[letter.state]}")
        raise typer.Exit(EXIT_FAILED)
    return letter
