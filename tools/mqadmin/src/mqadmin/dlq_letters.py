"""What the commands about dead letters have in common: options, which letters are meant, how one is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mqadmin import exits
from mqadmin.bodies import body_text
from mqadmin.errors import say
from mqadmin.messages import message_fields
from mqadmin.output import Table
from mqadmin.times import parse_time, time_text
from mqclient import Admin, DeadLetter, DeadLetterFilter, DeadLetterState

PREVIEW_CHARACTERS = 40
ALL = "*"
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
            raise typer.Exit(exits.NOT_FOUND)
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
