"""One question before something is lost: a person at a terminal is asked; a script only where a command says so."""

from __future__ import annotations

import sys

import typer

from mqadmin import exits
from mqadmin.errors import say


def confirm(question: str, *, yes: bool, scripts_too: bool = False) -> None:
    """Return when it may be done: `yes`, or the answer on standard input is yes, or there is no terminal to ask at.

    With `scripts_too` a script has to answer as well. Raises typer.Exit.
    """
    if yes or not (scripts_too or sys.stdin.isatty()):
        return
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:  # standard input is at its end
        typer.echo(err=True)
        say("nothing was changed: standard input holds no answer; -y answers yes")
        raise typer.Exit(exits.FAILED) from None
    if not agreed:
        say("nothing was changed")
        raise typer.Exit(exits.FAILED)
