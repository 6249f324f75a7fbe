"""One question before something is lost: a person at a terminal is asked, a script is not, as in RocketMQ."""

from __future__ import annotations

import sys

import typer

from mqadmin import exits
from mqadmin.errors import say


def confirm(question: str, *, yes: bool) -> None:
    """Return when it may be done: `yes`, no terminal to ask at, or a person who agrees. Raises typer.Exit."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        say("nothing was changed")
        raise typer.Exit(exits.FAILED)
