"""backup, restore: a copy of the store of a running broker, and a store made of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mqadmin import exits
from mqadmin.brokers import PANEL
from mqadmin.errors import say
from mqadmin.options import AsJson, NameServers
from mqadmin.output import Table, show
from mqadmin.restoring import Restore, RestoreError
from mqadmin.times import time_fields, time_text
from mqadmin.world import World
from mqclient import BackupDescription

commands = typer.Typer()

OneBroker = Annotated[
    str, typer.Option("-b", "--brokerAddr", metavar="HOST:PORT", help="The broker's address or name.")
]
NewFolder = Annotated[Path, typer.Option("-d", "--directory", metavar="FOLDER", help="An empty folder, or a new one.")]
Copy = Annotated[Path, typer.Option("-d", "--directory", metavar="FOLDER", help="The folder with the copy.")]
NewStore = Annotated[
    Path, typer.Option("-s", "--storePath", metavar="FOLDER", help="An empty folder, or a new one, for the store.")
]


@commands.command("backup", rich_help_panel=PANEL)
def backup(
    context: typer.Context,
    *,
    broker: OneBroker,
    directory: NewFolder,
    name_servers: NameServers,
    as_json: AsJson = False,
) -> None:
    """Copy the store of a running broker into a folder of this machine."""
    world, folder = World.of(context), directory.absolute()
    found = world.ask(name_servers, lambda admin: admin.backup_store(broker, folder, disk=world.open_disk()))
    show({"directory": str(folder), **_fields(found)}, _table(found), as_json=as_json)


@commands.command("restore", rich_help_panel=PANEL)
def restore(context: typer.Context, *, directory: Copy, store_path: NewStore, as_json: AsJson = False) -> None:
    """Make a store of a copy, for a broker to be started on; asks no cluster."""
    store = store_path.absolute()
    try:
        found = Restore(World.of(context).open_disk(), directory.absolute(), store).run()
    except RestoreError as error:
        say(str(error))
        raise typer.Exit(exits.FAILED) from None
    show({"store_path": str(store), **_fields(found)}, _table(found), as_json=as_json)
    say(f"to check it: python -m mq_broker.tools.dump_log {store} --verify")


def _fields(found: BackupDescription) -> dict[str, Any]:
    return {
        "broker_name": found.broker_name,
        **time_fields("taken_at", found.timestamp_ms),
        "log_min_offset": found.log_min_offset,
        "log_max_offset": found.log_max_offset,
        "files": len(found.files),
        "bytes": found.size,
    }


def _table(found: BackupDescription) -> Table:
    return Table(
        ("broker", "taken at", "log begins at", "log ends at", "files", "bytes"),
        [
            (
                found.broker_name,
                time_text(found.timestamp_ms),
                found.log_min_offset,
                found.log_max_offset,
                len(found.files),
                found.size,
            )
        ],
    )
