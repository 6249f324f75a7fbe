"""resetOffsetByTime, resetOffsetByOffset: where groups go on (MISSION C23, L13)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from mqadmin.asking_back import confirm
from mqadmin.groups import PANEL
from mqadmin.options import NO_VALUE, AsJson, NameServers, Switch, Topic, Yes
from mqadmin.output import Table, offset_or_none, show, show_table
from mqadmin.times import ALLOWED, iso_time, parse_time, time_text
from mqadmin.world import World
from mqclient import MessageQueue, OffsetChange

commands = typer.Typer()
QUEUE_END = -1  # as a time: behind the last message of each queue
NOW = "now"

ResetGroup = Annotated[str, typer.Option("-g", "--group", metavar="GROUP", help="The consumer group.")]
Timestamp = Annotated[
    str, typer.Option("-s", "--timestamp", metavar="TIME", help=f"Where to go on: {ALLOWED}. now: behind everything.")
]
Force = Annotated[Switch, typer.Option("-f", "--force", help="false: offsets only move back.")]
BrokerName = Annotated[str, typer.Option("-b", "--brokerName", metavar="NAME", help="The broker of the queue.")]
QueueId = Annotated[int, typer.Option("-i", "--queueId", metavar="N", min=0, help="The queue.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", metavar=NO_VALUE, help="Show what would change, and change nothing.")
]
Offset = Annotated[int, typer.Option("-o", "--offset", metavar="N", min=0, help="The next message to be consumed.")]


@commands.command("resetOffsetByTime", rich_help_panel=PANEL)
def reset_offset_by_time(
    context: typer.Context,
    *,
    group: ResetGroup,
    topic: Topic,
    timestamp: Timestamp,
    name_servers: NameServers,
    force: Force = "true",
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a group go on elsewhere: at the first message that was stored at a time or after it.

    Shows before it asks how many messages each queue delivers again or skips. A script has to answer too, or give -y.
    """
    world = World.of(context)
    is_end = timestamp.strip() == NOW
    timestamp_ms = QUEUE_END if is_end else parse_time(timestamp, world.clock.wall_ms())
    where = "behind the last message" if is_end else f"at {time_text(timestamp_ms)}"
    document = {
        "group": group,
        "topic": topic,
        "timestamp": None if is_end else iso_time(timestamp_ms),
        "timestamp_ms": None if is_end else timestamp_ms,
    }
    if dry_run or not yes:
        changes = world.ask(
            name_servers, lambda admin: admin.preview_reset_by_time(group, topic, timestamp_ms, force=force == "true")
        )
        if dry_run:
            _show_changes({**document, "dry_run": True}, changes, as_json=as_json)
            return
        show_table(_changes_table(changes), err=True)
        again, skipped = (
            sum(counts) for counts in zip((0, 0), *map(_again_and_skipped, changes.values()), strict=False)
        )
        confirm(
            f"Let group {group} go on {where} in every queue of {topic}, which delivers {again} messages again"
            f" and skips {skipped}?",
            yes=yes,
            scripts_too=True,
        )
    changes = world.ask(
        name_servers, lambda admin: admin.reset_offset_by_time(group, topic, timestamp_ms, force=force == "true")
    )
    _show_changes(document, changes, as_json=as_json)


@commands.command("resetOffsetByOffset", rich_help_panel=PANEL)
def reset_offset_by_offset(
    context: typer.Context,
    *,
    group: ResetGroup,
    topic: Topic,
    broker_name: BrokerName,
    queue_id: QueueId,
    offset: Offset,
    name_servers: NameServers,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a group go on elsewhere in one queue: at an offset, forward as well as back."""
    queue = MessageQueue(topic, broker_name, queue_id)
    confirm(f"Let group {group} go on at offset {offset} in queue {queue_id} of {topic} on {broker_name}?", yes=yes)
    changes = World.of(context).ask(name_servers, lambda admin: admin.reset_offset_by_queue(group, {queue: offset}))
    _show_changes({"group": group, "topic": topic}, changes, as_json=as_json)


def _show_changes(document: Mapping[str, Any], changes: Mapping[MessageQueue, OffsetChange], *, as_json: bool) -> None:
    queues = [
        {
            "broker_name": queue.broker_name,
            "queue_id": queue.queue_id,
            "offset_before": offset_or_none(change.before),
            "offset": change.now,
            **dict(zip(("delivered_again", "skipped"), _again_and_skipped(change), strict=True)),
        }
        for queue, change in sorted(changes.items())
    ]
    show({**document, "queues": queues}, _changes_table(changes), as_json=as_json)


def _changes_table(changes: Mapping[MessageQueue, OffsetChange]) -> Table:
    return Table(
        ("broker", "queue", "offset before", "offset now", "again", "skipped"),
        [
            (
                queue.broker_name,
                queue.queue_id,
                offset_or_none(change.before),
                change.now,
                *_again_and_skipped(change),
            )
            for queue, change in sorted(changes.items())
        ],
    )


def _again_and_skipped(change: OffsetChange) -> tuple[int, int]:
    """How many messages of a queue are delivered again, and how many are skipped; 0 without an offset."""
    if change.before < 0:
        return 0, 0
    return max(0, change.before - change.now), max(0, change.now - change.before)
