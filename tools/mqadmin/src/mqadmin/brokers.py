"""clusterList, brokerStatus, brokerConfig, delayStatus: the brokers, and what waits in them to be delivered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mqadmin.errors import say
from mqadmin.options import NO_VALUE, AsJson, BrokerAddress, Cluster, NameServers, WholeCluster
from mqadmin.output import Cell, Table, duration_text, show, time_fields, time_text
from mqadmin.world import MASTER_ID, Answers, World, ask_each, ask_status, broker_fields, brokers_of, require_one_target
from mqclient import Admin
from mqclient.admin import BrokerStatus, ClusterBroker, DelayLevelStatus

PANEL = "Brokers"
TIMER_LEVEL = -1
COLUMNS = ("broker", "level", "delay", "waiting", "next due", "delivered", "p50 ms", "p99 ms", "max ms")

commands = typer.Typer()

MoreStats = Annotated[
    bool, typer.Option("-m", "--moreStats", metavar=NO_VALUE, help="What each broker stores and has to deliver.")
]
Interval = Annotated[
    int | None,
    typer.Option("-i", "--interval", metavar="SECONDS", min=1, help="Again after so many seconds, for ever."),
]


@commands.command("clusterList", rich_help_panel=PANEL)
def cluster_list(
    context: typer.Context,
    *,
    name_servers: NameServers,
    more_stats: MoreStats = False,
    interval: Interval = None,
    cluster: WholeCluster = None,
    as_json: AsJson = False,
) -> None:
    """The registered brokers and their state."""
    if interval is not None and as_json:
        raise typer.BadParameter("-i repeats a table and --json is one document; choose one")
    world = World.of(context)

    async def question(admin: Admin) -> Answers[BrokerStatus]:
        while True:
            answers = await ask_status(admin, cluster=cluster, replicas=True)
            if interval is None:
                return answers
            show({}, _cluster_table(answers, world.clock.wall_ms(), more_stats=more_stats), as_json=False)
            typer.echo()
            await world.clock.sleep(interval)

    answers = world.ask(name_servers, question)
    document = {
        "brokers": [{**broker_fields(broker), **_status_fields(status)} for broker, status in answers.given],
        "failed": answers.failures(),
    }
    show(document, _cluster_table(answers, world.clock.wall_ms(), more_stats=more_stats), as_json=as_json)
    answers.end()


def _cluster_table(answers: Answers[BrokerStatus], now_ms: int, *, more_stats: bool) -> Table:
    load = ("stored", "waiting", "log bytes", "unsynced") if more_stats else ("up for", "in", "out")
    rows: list[Sequence[Cell]] = []
    for broker, status in answers.given:
        store = status.store
        if more_stats:
            waiting = sum(level.waiting for level in status.delay_levels)
            unsynced = status.log_max_offset - store.durable_offset
            size = status.log_max_offset - status.log_min_offset
            figures: Sequence[Cell] = (status.messages_stored, waiting, size, unsynced)
        else:
            up_for = duration_text(max(0, now_ms - status.boot_timestamp_ms))
            figures = (up_for, status.messages_put, status.messages_got)
        rows.append((*_who(broker), *figures, f"{store.disk_used_share:.0%}", _writes(broker, status)))
    rows += [(*_who(broker), *[None] * len(load), None, "no answer") for broker, _ in answers.failed]
    return Table(("cluster", "broker", "id", "address", *load, "disk", "writes"), rows)


def _writes(broker: ClusterBroker, status: BrokerStatus) -> str:
    if broker.broker_id != MASTER_ID:
        return "by its master"
    return "refused" if status.store.write_rejection else "accepted"


def _who(broker: ClusterBroker) -> tuple[str, str, int, str]:
    return broker.cluster_name, broker.broker_name, broker.broker_id, broker.address


@commands.command("brokerStatus", rich_help_panel=PANEL)
def broker_status(
    context: typer.Context,
    *,
    name_servers: NameServers,
    broker_address: BrokerAddress = None,
    cluster: WholeCluster = None,
    as_json: AsJson = False,
) -> None:
    """The whole status of a broker."""
    require_one_target(broker_address, cluster)

    answers = World.of(context).ask(
        name_servers, lambda admin: ask_status(admin, broker_address=broker_address, cluster=cluster, replicas=True)
    )
    document = {
        "brokers": [{**broker_fields(broker), **_status_fields(status)} for broker, status in answers.given],
        "failed": answers.failures(),
    }
    tables = [table for broker, status in answers.given for table in _status_tables(broker, status)]
    show(document, *tables, as_json=as_json)
    answers.end()


def _status_tables(broker: ClusterBroker, status: BrokerStatus) -> list[Table]:
    values = {
        "broker id": f"{broker.broker_id}, the master"
        if broker.broker_id == MASTER_ID
        else f"{broker.broker_id}, a replica",
        "started": time_text(status.boot_timestamp_ms),
        "messages put": status.messages_put,
        "messages got": status.messages_got,
        "messages stored": status.messages_stored,
        "polls held": status.polls_held,
        "log begins at": status.log_min_offset,
        "log ends at": status.log_max_offset,
        "readable up to": status.store.confirm_offset,
        "durable up to": status.store.durable_offset,
        "indexed up to": status.store.indexed_offset,
        "disk used": f"{status.store.disk_used_share:.1%}",
        "writes": status.store.write_rejection or _writes(broker, status),
        "damaged": ", ".join(f"{size} bytes at {at}" for at, size in status.store.damaged) or "nothing",
        "files deleted": status.store.files_deleted,
        "messages carried": status.store.messages_carried,
    }
    rows = [(name, str(value)) for name, value in values.items()]
    levels = Table(
        ("level", "delay", "waiting", "delivered", "latest by"),
        [
            (
                level_name(level),
                delay_text(level),
                level.waiting,
                level.delivered,
                duration_text(level.lateness_max_ms) if level.delivered else None,
            )
            for level in status.delay_levels
            if level.waiting or level.delivered
        ],
    )
    return [Table((status.broker_name, status.address), rows), levels]


def _status_fields(status: BrokerStatus) -> dict[str, Any]:
    store = status.store
    return {
        **time_fields("started_at", status.boot_timestamp_ms),
        "messages_put": status.messages_put,
        "messages_got": status.messages_got,
        "messages_stored": status.messages_stored,
        "polls_held": status.polls_held,
        "log_min_offset": status.log_min_offset,
        "log_max_offset": status.log_max_offset,
        "confirm_offset": store.confirm_offset,
        "durable_offset": store.durable_offset,
        "indexed_offset": store.indexed_offset,
        "disk_used_share": store.disk_used_share,
        "write_refusal": store.write_rejection or None,
        "damaged": [{"log_offset": at, "size": size} for at, size in store.damaged],
        "files_deleted": store.files_deleted,
        "messages_carried": store.messages_carried,
        "delay_levels": [level_fields(level) for level in status.delay_levels],
    }


@commands.command("brokerConfig", rich_help_panel=PANEL)
@commands.command("getBrokerConfig", hidden=True)  # RocketMQ's name
def broker_config(
    context: typer.Context,
    *,
    name_servers: NameServers,
    broker_address: BrokerAddress = None,
    cluster: WholeCluster = None,
    as_json: AsJson = False,
) -> None:
    """The configuration as it is in force, by the keys of broker.conf (RocketMQ: getBrokerConfig)."""
    require_one_target(broker_address, cluster)

    async def question(admin: Admin) -> Answers[dict[str, str]]:
        brokers = await brokers_of(admin, broker_address=broker_address, cluster=cluster, replicas=True)
        return await ask_each(brokers, lambda broker: admin.broker_config(broker.address))

    answers = World.of(context).ask(name_servers, question)
    document = {
        "brokers": [{**broker_fields(broker), "config": config} for broker, config in answers.given],
        "failed": answers.failures(),
    }
    tables = [
        Table((broker.broker_name or broker.address, "value"), list(config.items())) for broker, config in answers.given
    ]
    show(document, *tables, as_json=as_json)
    answers.end()


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
    show(document, Table(COLUMNS, [_level_row(*one) for one in busy]), as_json=as_json)
    if len(busy) < len(levels) and not as_json:
        say(f"{len(levels) - len(busy)} unused levels are left out; -a shows them")
    answers.end()


def _level_row(broker: ClusterBroker, level: DelayLevelStatus) -> Sequence[Cell]:
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


def level_name(level: DelayLevelStatus) -> str:
    """The level's number, or `timer`."""
    return "timer" if level.level == TIMER_LEVEL else str(level.level)


def delay_text(level: DelayLevelStatus) -> str | None:
    """The level's delay; None for the timer, where each message has its own, and for a level that is none any more."""
    return duration_text(level.delay_ms) if level.delay_ms else None


def level_fields(level: DelayLevelStatus) -> dict[str, Any]:
    """The level in a JSON document."""
    late = bool(level.delivered)
    return {
        "level": level.level,
        "delay_ms": level.delay_ms or None,
        "waiting": level.waiting,
        **time_fields("next_due_at", level.next_due_timestamp_ms),
        "delivered": level.delivered,
        "lateness_p50_ms": level.lateness_p50_ms if late else None,
        "lateness_p99_ms": level.lateness_p99_ms if late else None,
        "lateness_max_ms": level.lateness_max_ms if late else None,
    }
