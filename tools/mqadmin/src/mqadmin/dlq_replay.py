"""dlq replay: dead letters sent again, to their group or to their topics, and not faster than an operator wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Annotated

import typer

from mqadmin.dlq import (
    ALL,
    DONE,
    EVERY_STATE,
    OPEN,
    OPEN_OR_REPLAYED,
    Contains,
    OfKey,
    OfTag,
    OfTopic,
    Since,
    Until,
    letter_fields,
    named_letters,
    wanted_letters,
)
from mqadmin.errors import EXIT_FAILED, EXIT_NOT_FOUND, confirm, say
from mqadmin.options import NO_VALUE, AsJson, Group, NameServers, Yes
from mqadmin.output import JsonStream, printable
from mqadmin.world import World
from mqclient import Admin, MQClientError, RejectedError, SendResult
from mqclient.admin import DeadLetter, DeadLetterFilter, ReplayTarget
from osenv import Clock

commands = typer.Typer()

Ids = Annotated[
    list[str] | None,
    typer.Option(
        "-i", "--msgId", metavar="ID", help="A unique id, or a letter's id by position; may be given several times."
    ),
]
Everything = Annotated[bool, typer.Option("--everything", metavar=NO_VALUE, help="Every dead letter of the group.")]
Rate = Annotated[
    float | None, typer.Option("--rate", metavar="N", min=0.001, help="At most N letters a second; 0.5: one in 2 s.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", metavar=NO_VALUE, help="Say what would be sent, and change nothing.")
]
To = Annotated[
    ReplayTarget, typer.Option("--to", help="To the group alone, or to the topic, for every group that reads it.")
]
Again = Annotated[
    bool,
    typer.Option(
        "--again", metavar=NO_VALUE, help="Also what was replayed already; a letter that was edited only by -i."
    ),
]


class Pace:
    """No more than `per_second` steps a second, evenly spread; None: no waiting."""

    def __init__(self, clock: Clock, per_second: float | None) -> None:
        self._clock = clock
        self._interval_s = 1 / per_second if per_second else 0.0
        self._next_at = clock.monotonic()

    async def wait(self) -> None:
        """Return when the next step may be made. A late step is not made up for."""
        left_s = self._next_at - self._clock.monotonic()
        if left_s > 0:
            await self._clock.sleep(left_s)
        self._next_at = max(self._next_at, self._clock.monotonic()) + self._interval_s


@dataclass
class Replay:
    """What is to be replayed, and how far it is."""

    group: str
    wanted: DeadLetterFilter
    target: ReplayTarget
    again: bool
    count: int = 0
    done: int = 0
    rejected: int = 0
    _named: list[DeadLetter] = field(default_factory=list)  # those that ids name; others are read when it is their turn

    async def look(self, admin: Admin) -> None:
        """Count them. Raises typer.Exit when an id names none, or one that may not be replayed again."""
        if self.wanted.ids:
            self._named = await named_letters(admin, self.group, sorted(self.wanted.ids))
            self.count = len(self._named)
            for letter in self._named:
                if letter.state not in self.wanted.states:
                    id_ = letter.message.message_id
                    say(f"the dead letter {id_} {DONE[letter.state]}; --again sends it all the same")
                    raise typer.Exit(EXIT_FAILED)
            return
        async for _ in admin.dead_letters(self.group, self.wanted):
            self.count += 1

    async def run(
        self, admin: Admin, pace: Pace, tell: Callable[[DeadLetter, SendResult | RejectedError], None]
    ) -> None:
        """Replay one after the other. One that is rejected does not hold up the others. Raises MQClientError."""
        async for letter in self.letters(admin):
            await pace.wait()
            try:
                result = await admin.replay_dead_letter(letter, target=self.target, again=self.again)
            except RejectedError as error:
                self.rejected += 1
                tell(letter, error)
            else:
                self.done += 1
                tell(letter, result)

    async def letters(self, admin: Admin) -> AsyncIterator[DeadLetter]:
        """No more than were counted: letters that came later were not confirmed."""
        if self.wanted.ids:
            for letter in self._named:
                yield letter
            return
        left = self.count
        async with aclosing(admin.dead_letters(self.group, self.wanted)) as found:
            async for letter in found:
                if not left:
                    return
                left -= 1
                yield letter

    @property
    def whereto(self) -> str:
        """The groups that get them."""
        if self.target is ReplayTarget.GROUP:
            return f"to group {self.group} alone"
        return "to the topics that they were sent to first, for every group that reads them"

    @property
    def summary(self) -> str:
        """How far it is."""
        return f"{self.done} of {self.count} dead letters of group {self.group} replayed, {self.whereto}"


@commands.command("replay")
def replay_letters(
    context: typer.Context,
    *,
    group: Group,
    name_servers: NameServers,
    ids: Ids = None,
    topic: OfTopic = None,
    tag: OfTag = ALL,
    key: OfKey = None,
    since: Since = None,
    until: Until = None,
    contains: Contains = None,
    everything: Everything = False,
    target: To = ReplayTarget.GROUP,
    rate: Rate = None,
    dry_run: DryRun = False,
    again: Again = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Send dead letters again: those that are named, those of a filter, or all."""
    world = World.of(context)
    filtered = wanted_letters(
        world.clock.wall_ms(),
        topic=topic,
        tag=tag,
        key=key,
        since=since,
        until=until,
        contains=contains,
        states=OPEN_OR_REPLAYED if again else OPEN,
    )
    is_filtered = filtered != DeadLetterFilter(states=filtered.states)
    if [bool(ids), is_filtered, everything].count(True) != 1:
        raise typer.BadParameter("specify exactly one of: -i, a filter such as --topic or --since, --everything")
    if ids:
        filtered = DeadLetterFilter(ids=frozenset(ids), states=EVERY_STATE if again else OPEN)
    replay = Replay(group, filtered, target, again)
    world.ask(name_servers, replay.look)
    if not replay.count:
        say(f"group {group} has no such dead letters")
        raise typer.Exit(EXIT_NOT_FOUND)
    if not dry_run and replay.count > 1:
        confirm(f"Replay {replay.count} dead letters of group {group}, {replay.whereto}?", yes=yes)
    with JsonStream("letters") if as_json else nullcontext() as stream:
        if dry_run:
            world.ask(name_servers, lambda admin: _rehearse(admin, replay, stream))
        else:
            _perform(world, name_servers, replay, Pace(world.clock, rate), stream)
    if not as_json:
        typer.echo(_last_line(replay, dry_run=dry_run))
    if replay.rejected:
        raise typer.Exit(EXIT_FAILED)


async def _rehearse(admin: Admin, replay: Replay, stream: JsonStream | None) -> None:
    async for letter in replay.letters(admin):
        _tell(stream, letter, "would be replayed")


def _perform(world: World, name_servers: str, replay: Replay, pace: Pace, stream: JsonStream | None) -> None:
    """Raises MQClientError and KeyboardInterrupt, after a sentence about how far it has come."""

    def tell(letter: DeadLetter, outcome: SendResult | RejectedError) -> None:
        if isinstance(outcome, SendResult):
            _tell(stream, letter, "replayed", result=outcome)
        else:
            _tell(stream, letter, "refused", error=outcome)

    try:
        world.ask(name_servers, lambda admin: replay.run(admin, pace, tell))
    except KeyboardInterrupt:
        say(f"interrupted: {replay.summary}")
        raise
    except MQClientError:
        say(f"given up: {replay.summary}")
        raise


def _tell(
    stream: JsonStream | None,
    letter: DeadLetter,
    outcome: str,
    *,
    result: SendResult | None = None,
    error: RejectedError | None = None,
) -> None:
    """One letter of a list that may be long."""
    if stream is not None:
        place = result and {
            "topic": result.message_queue.topic,
            "broker_name": result.message_queue.broker_name,
            "queue_id": result.message_queue.queue_id,
            "queue_offset": result.queue_offset,
        }
        own = {"outcome": outcome, "sent_to": place, "error": None if error is None else str(error)}
        stream.add({**letter_fields(letter, with_body=False), **own})
        return
    parts = [letter.message.message_id, letter.topic, outcome]
    parts += [f"to {result.message_queue} offset {result.queue_offset}"] if result else []
    parts += [str(error)] if error else []
    typer.echo(printable("  ".join(parts)))


def _last_line(replay: Replay, *, dry_run: bool) -> str:
    if dry_run:
        return (
            f"{replay.count} dead letters of group {replay.group} would be replayed, {replay.whereto}; nothing was sent"
        )
    return replay.summary + (f"; {replay.rejected} rejected" if replay.rejected else "")
