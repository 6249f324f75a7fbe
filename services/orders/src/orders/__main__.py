"""`python -m orders` serves; `python -m orders migrate` brings the database to this version and ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

import uvloop

from orders import app
from orders.adapters.mq_connection import QueueConfigurationError
from orders.config import Config, ConfigError, from_environment
from orders.domain.errors import StorageUnavailableError

EXIT_FAILED = 1
EXIT_USAGE = 2


def main(arguments: list[str] | None = None) -> int:
    """The exit code: 0 after an orderly stop, 1 after a failure, 2 for a configuration that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m orders",
        description="Orders that close by themselves when nobody pays. Configuration: ORDERS_* variables.",
    )
    parser.add_argument("command", nargs="?", choices=("serve", "migrate"), default="serve")
    command = parser.parse_args(arguments).command
    try:
        config = from_environment(os.environ)
    except ConfigError as error:
        print(f"orders: {error}", file=sys.stderr)
        return EXIT_USAGE
    exit_code = 0
    try:
        _run(command, config)
    except* (OSError, StorageUnavailableError, QueueConfigurationError) as group:
        exit_code = EXIT_FAILED
        print(f"orders: {_first(group)}", file=sys.stderr)
    return exit_code


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _run(command: str, config: Config) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(app.run_migrations(config) if command == "migrate" else app.serve(config))


if __name__ == "__main__":
    sys.exit(main())
