"""delayStatus: what waits to be delivered, and how late it is when it comes (MISSION D1-D4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from mqadmin.brokers import PANEL
from mqadmin.delay_levels import delay_text, level_fields, level_name
from mqadmin.errors import say
from mqadmin.options import NO_VALUE, AsJson, BrokerAddress, Cluster, NameServers
from mqadmin.output import Cell, Table, show
from mqadmin.targets import ask_status, broker_fields
from mqadmin.times import time_text
from mqadmin.world import World
from mqclient import ClusterBroker, DelayLevelStatus

commands = typer.Typer()
COLUMNS = ("broker", "level", "delay", "waiting", "next due", "delivered", "p50 ms", "p99 ms", "max ms")
EveryLevel = Annotated[
    bool, typer.Option("-a", "--all", metavar=NO_VALUE, help="Also levels that nothing waits in or came out of.")
]


@commands.command("delayStatus", rich_help_panel=PANEL)
def delay_status(
    context: typer.Context,
    *,
    name_servers: NameServers,
    broker_address: BrokerAddress = None,
    cluster: Cluster = None,
    show_all: EveryLevel = False,
    as_json: AsJson = False,
) -> None:
    """What waits in each delay level and in the timer, and how late it came since the broker started."""
    if broker_address is not None and cluster is not None:
        raise typer.BadParameter("-b is one broker and -c are those of a cluster; give one of the two, or none")

    answers = World.of(context).ask(
        name_servers, lambda admin: ask_status(admin, broker_address=broker_address, cluster=cluster)
    )
    document = {
        "brokers": [
            {**broker_fields(broker), "delay_levels": [level_fields(level) for level in status.delay_levels]}
            for broker, status in answers.given
        ],
        "failed": answers.failures(),
    }
    levels = [(broker, level) for broker, status in answers.given for level in status.delay_levels]
    busy = [(broker, level) for broker, level in levels if show_all or level.waiting or level.delivered]
    show(document, Table(COLUMNS, [_row(*one) for one in busy]), as_json=as_json)
    if len(busy) < len(levels) and not as_json:
        say(f"{len(levels) - len(busy)} unused levels are left out; -a shows them")
    answers.end()


def _row(broker: ClusterBroker, level: DelayLevelStatus) -> Sequence[Cell]:
    late = (level.lateness_p50_ms, level.lateness_p99_ms, level.lateness_max_ms)
    return (
        broker.broker_name or broker.address,
        level_name(level),
        delay_text(level),
        level.waiting,
        time_text(level.next_due_timestamp_ms),
        level.delivered,
        *(late if level.delivered else (None, None, None)),
    )
