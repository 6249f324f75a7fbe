"""dlq edit: a dead letter that cannot be consumed as it is, made into one that can."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mqadmin import exits
from mqadmin.dlq_list import DONE, LetterId, named_letters
from mqadmin.errors import say
from mqadmin.options import AsJson, Group, NameServers
from mqadmin.output import Table, show
from mqadmin.world import World
from mqclient import Admin, DeadLetter, DeadLetterState, SendResult

commands = typer.Typer()

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
        raise typer.Exit(exits.FAILED)
    return letter
