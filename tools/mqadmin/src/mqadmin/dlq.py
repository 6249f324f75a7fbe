"""dlq list, dlq show, dlq edit, dlq replay: the dead letters of a group (MISSION R2)."""

from __future__ import annotations

import typer

from mqadmin import dlq_edit, dlq_list, dlq_replay

commands = typer.Typer(help="Dead letters: list, show, edit, replay.")


@commands.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


for module in (dlq_list, dlq_edit, dlq_replay):
    commands.registered_commands += module.commands.registered_commands
