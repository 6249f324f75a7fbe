"""haStatus, switchMaster: masters and replicas as they are, and another master by an operator's decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import typer

from mqadmin.brokers import PANEL, Interval
from mqadmin.errors import confirm, say
from mqadmin.options import NO_VALUE, AsJson, NameServers, WholeCluster, Yes
from mqadmin.output import Cell, Table, show
from mqadmin.world import Answers, World, broker_fields
from mqclient import Admin
from mqclient.admin import BrokerRole, ClusterBroker, HaAnswer, HaStatus, MasterSwitch, ReplicaStatus

commands = typer.Typer()

CLOCK_TOLD_MS = 2_000  # as a broker's log does

Broker = Annotated[
    str | None, typer.Option("-b", "--brokerAddr", metavar="BROKER", help="Only this broker, by its name or address.")
]
BrokerName = Annotated[
    str, typer.Option("-b", "--brokerName", metavar="BROKER", help="The name that master and replicas share.")
]
To = Annotated[
    str | None,
    typer.Option("--to", metavar="ID|HOST:PORT", help="The new master, by its broker id or its address."),
]
OldMasterIsLost = Annotated[
    bool,
    typer.Option(
        "--oldMasterIsLost",
        metavar=NO_VALUE,
        help="The old master is gone for good; without --to the replica that has most becomes the master.",
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", metavar=NO_VALUE, help="Also one that is not in sync, or after a loss has less than another."
    ),
]
MasterRole = Annotated[
    Literal["ASYNC_MASTER", "SYNC_MASTER"],
    typer.Option("--role", help="The new master's role, where the old one's is not known any more."),
]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long to wait for each step.")
]


@commands.command("haStatus", rich_help_panel=PANEL)
def ha_status(
    context: typer.Context,
    *,
    name_servers: NameServers,
    broker: Broker = None,
    cluster: WholeCluster = None,
    interval: Interval = None,
    as_json: AsJson = False,
) -> None:
    """Masters and replicas: the roles, the epochs, and how far replicas are behind."""
    if interval is not None and as_json:
        raise typer.BadParameter("-i repeats a table and --json is one document; choose one")
    world = World.of(context)

    async def question(admin: Admin) -> Answers[HaStatus]:
        while True:
            answers = _answers(await admin.ha_status(cluster_name=cluster, broker=broker))
            if interval is None:
                return answers
            show({}, _status_table(answers), as_json=False)
            typer.echo()
            await world.clock.sleep(interval)

    answers = world.ask(name_servers, question)
    document = {
        "brokers": [{**broker_fields(one), **_status_fields(status)} for one, status in answers.given],
        "failed": answers.failures(),
    }
    show(document, _status_table(answers), as_json=as_json)
    answers.end()


@commands.command("switchMaster", rich_help_panel=PANEL)
def switch_master(
    context: typer.Context,
    *,
    broker_name: BrokerName,
    name_servers: NameServers,
    to: To = None,
    old_master_is_lost: OldMasterIsLost = False,
    force: Force = False,
    role: MasterRole = "SYNC_MASTER",
    timeout_s: Timeout = 30.0,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Make a replica the master: the old one stops, the replica gets the rest, they swap roles; nothing is lost.

    A switch that was broken off is finished by the same command, or taken back by one to the old master.
    """
    target = _target(to, old_master_is_lost=old_master_is_lost)
    target_text = "the replica that has most" if to is None else to
    lost = ", and lose what only the old master has" if old_master_is_lost else ""
    confirm(f"Make {target_text} the master of {broker_name}{lost}?", yes=yes)
    outcome = World.of(context).ask(
        name_servers,
        lambda admin: admin.switch_master(
            broker_name,
            target,
            old_master_is_lost=old_master_is_lost,
            force=force,
            role=BrokerRole[role],
            timeout_s=timeout_s,
        ),
    )
    show(_switch_fields(outcome), _switch_table(outcome), as_json=as_json)
    if not outcome.promoted:
        say(f"{outcome.master} was the master already")


def _target(to: str | None, *, old_master_is_lost: bool) -> int | str | None:
    """The id or the address. Raises BadParameter."""
    if to is None:
        if not old_master_is_lost:
            raise typer.BadParameter("name the new master with --to")
        return None
    if ":" in to:
        return to
    if not (to.isascii() and to.isdigit()):
        raise typer.BadParameter(f"--to {to!r} is neither a broker id nor an address (host:port)")
    return int(to)


def _answers(found: Sequence[HaAnswer]) -> Answers[HaStatus]:
    answers = Answers[HaStatus]()
    for one in found:
        if one.status is not None:
            status = one.status
            broker = ClusterBroker(status.cluster_name, status.broker_name, status.broker_id, status.address)
            answers.given.append((broker, status))
        if one.error is not None:
            answers.failed.append((one.broker, one.error))
    return answers


def _status_table(answers: Answers[HaStatus]) -> Table:
    columns = (
        "broker",
        "id",
        "address",
        "role",
        "writes",
        "epoch",
        "log end",
        "readable",
        "lag bytes",
        "lag",
        "in sync",
    )
    rows: list[Sequence[Cell]] = [(*_identity(broker), *_status_cells(status)) for broker, status in answers.given]
    rows += [(*_identity(broker), None, "no answer", *[None] * (len(columns) - 4)) for broker, _ in answers.failed]
    footer = [
        f"{broker.broker_name} {broker.broker_id}: {_without_transport_noise(status.reason)}"
        for broker, status in answers.given
        if status.reason and not status.writable and (status.role.is_master or not status.connected)
    ]
    return Table((*columns, "slaves"), rows, footer=footer)


def _without_transport_noise(reason: str) -> str:
    """The reason up to gRPC's own account of what it tried: `failed to connect to all addresses; last error: ...`."""
    return reason.partition("; last error:")[0]


def _identity(broker: ClusterBroker) -> tuple[Cell, ...]:
    return broker.broker_name, broker.broker_id, broker.address


def _status_cells(status: HaStatus) -> tuple[Cell, ...]:
    is_master = status.role.is_master
    replicas = ", ".join(map(_replica_text, status.replicas))
    return (
        status.role.name,
        "accepted" if status.writable else "refused" if is_master else "by its master",
        str(status.epoch),
        status.log_end,
        status.confirm_offset,
        None if is_master else status.lag_bytes,
        None if is_master else f"{status.lag_seconds:.1f} s",
        f"{status.in_sync_replicas} (at least {status.min_in_sync_replicas})" if is_master else status.in_sync,
        (replicas or "none") if is_master else "connected" if status.connected else "not connected",
    )


def _replica_text(replica: ReplicaStatus) -> str:
    if not replica.connected:
        return f"{replica.broker_id} is away"
    text = (
        f"{replica.broker_id} in sync" if replica.in_sync else f"{replica.broker_id} {replica.lag_bytes} bytes behind"
    )
    if abs(replica.clock_ahead_ms) < CLOCK_TOLD_MS:
        return text
    return f"{text}, its clock {replica.clock_ahead_ms / 1_000:+.1f} s"


def _status_fields(status: HaStatus) -> dict[str, Any]:
    is_master = status.role.is_master
    return {
        "replica_id": status.replica_id,
        "role": status.role.name,
        "writable": status.writable,
        "reason": status.reason or None,
        "epoch": str(status.epoch),
        "log_begin": status.log_begin,
        "log_end": status.log_end,
        "durable_end": status.durable_end,
        "confirm_offset": status.confirm_offset,
        "min_in_sync_replicas": status.min_in_sync_replicas,
        "in_sync_version": status.in_sync_version,
        "in_sync_replicas": status.in_sync_replicas if is_master else None,
        "in_sync": None if is_master else status.in_sync,
        "connected": None if is_master else status.connected,
        "lag_bytes": None if is_master else status.lag_bytes,
        "lag_seconds": None if is_master else status.lag_seconds,
        "clock_ahead_ms": None if is_master else status.clock_ahead_ms,
        "ha_address": status.ha_address or None,
        "master_ha_address": status.master_ha_address or None,
        "replicas": [_replica_fields(one) for one in status.replicas],
    }


def _replica_fields(replica: ReplicaStatus) -> dict[str, Any]:
    return {
        "replica_id": replica.replica_id,
        "broker_id": replica.broker_id,
        "broker_address": replica.address,
        "connected": replica.connected,
        "in_sync": replica.in_sync,
        "written_offset": replica.written_offset,
        "durable_offset": replica.durable_offset,
        "acknowledged_offset": replica.acknowledged_offset,
        "lag_bytes": replica.lag_bytes,
        "lag_seconds": replica.lag_seconds,
        "clock_ahead_ms": replica.clock_ahead_ms,
    }


def _switch_table(outcome: MasterSwitch) -> Table:
    replicas = ", ".join(f"{broker_id}: {address}" for broker_id, address in outcome.replicas)
    return Table(
        ("broker", "master", "role", "epoch", "from offset", "slaves now"),
        [
            (
                outcome.broker_name,
                outcome.master,
                outcome.role.name,
                str(outcome.epoch),
                outcome.log_end,
                replicas or None,
            )
        ],
    )


def _switch_fields(outcome: MasterSwitch) -> dict[str, Any]:
    return {
        "broker_name": outcome.broker_name,
        "master_address": outcome.master,
        "role": outcome.role.name,
        "epoch": str(outcome.epoch),
        "log_end": outcome.log_end,
        "promoted": outcome.promoted,
        "slaves": [{"broker_id": broker_id, "broker_address": address} for broker_id, address in outcome.replicas],
    }
