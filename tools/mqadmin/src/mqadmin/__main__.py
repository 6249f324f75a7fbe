"""All sub-commands put together: `mqadmin`, or `python -m mqadmin`."""

from __future__ import annotations

import logging
from importlib.metadata import version
from typing import Annotated

import typer

from mqadmin import (
    backups,
    brokers,
    consumers,
    dlq,
    dlq_replay,
    explaining,
    groups,
    messages,
    replication,
    sending,
    topics,
    transactions,
)
from mqadmin.errors import Commands
from mqadmin.options import NO_VALUE

app = typer.Typer(
    name="mqadmin",
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    help="Operate a Hourglass queue, with the names and flags of RocketMQ's mqadmin.",
    epilog="Name servers: -n, or the variable NAMESRV_ADDR. Exit codes: 0 done, 1 rejected or out of reach,"
    " 2 wrong usage, 3 nothing found.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mqadmin {version('hourglass-mqadmin')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version", metavar=NO_VALUE, callback=_show_version, is_eager=True, help="The version of this program."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for module in (topics, brokers, replication, backups, groups, consumers, messages, sending, explaining):
    app.registered_commands += module.commands.registered_commands
dlq.commands.registered_commands += dlq_replay.commands.registered_commands
app.add_typer(dlq.commands, name="dlq", rich_help_panel=messages.PANEL)
app.add_typer(transactions.commands, name="tx", rich_help_panel=messages.PANEL)


@app.command("help", rich_help_panel="Help")
def show_help(
    context: typer.Context, command: Annotated[str, typer.Argument(metavar="COMMAND", help="A sub-command.")]
) -> None:
    """What a sub-command does, and its flags."""
    parent = context.parent
    commands = parent.command if parent else None
    found = commands.get_command(parent, command) if parent and isinstance(commands, Commands) else None
    if found is None:
        raise typer.BadParameter(f"there is no sub-command {command!r}; mqadmin --help names all")
    typer.echo(found.get_help(typer.Context(found, info_name=command, parent=parent)))


def main() -> None:
    """Run the command line and end the process; what the client logs stays inside."""
    logging.getLogger().addHandler(logging.NullHandler())
    app(prog_name="mqadmin")


if __name__ == "__main__":
    main()
