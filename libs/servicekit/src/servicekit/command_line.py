"""`python -m <service>` serves; `python -m <service> migrate` brings the database to this version and ends;
`python -m <service> reconcile` puts right what messages should have done, where a service has a reconciler.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import uvloop

import telemetry
from servicekit.adapters.migrate import MigrationRefusedError
from servicekit.adapters.mq_connection import QueueConfigurationError
from servicekit.config import ConfigError, ServiceConfig
from servicekit.errors import QueueUnreachableError, StorageUnavailableError
from servicekit.reconciler import Reconciled

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_FOUND = 3

ConfigT = TypeVar("ConfigT", bound=ServiceConfig)


def run_service(
    name: str,
    description: str,
    arguments: Sequence[str] | None,
    *,
    from_environment: Callable[[Mapping[str, str]], ConfigT],
    serve: Callable[[ConfigT], Coroutine[Any, Any, None]],
    run_migrations: Callable[[ConfigT], Coroutine[Any, Any, None]],
    reconcile: Callable[[ConfigT, bool], Coroutine[Any, Any, Reconciled]] | None = None,
    service_name: str | None = None,
) -> int:
    """The exit code: 0 after an orderly stop, 1 after a failure, 2 for a configuration that cannot be used, 3 when
    `reconcile`, whose second argument says whether it is a dry run, has found something.

    Telemetry is set up before anything else and ends last. `name` is the module's; logs, traces and metrics are those
    of `service_name`, where it is another.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    commands = ["serve", "migrate"] if reconcile is None else ["serve", "migrate", "reconcile"]
    parser.add_argument("command", nargs="?", choices=commands, default="serve")
    if reconcile is not None:
        parser.add_argument("--dry-run", action="store_true", help="reconcile: say what is wrong and change nothing")
    given = parser.parse_args(arguments)
    command, is_dry_run = given.command, reconcile is not None and given.dry_run
    if is_dry_run and command != "reconcile":
        parser.error("--dry-run is for reconcile")
    try:
        config = from_environment(os.environ)
        telemetry.configure(service_name or name, config.log_level)
    except (ConfigError, telemetry.TelemetryConfigError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_USAGE
    exit_code = 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            if command == "reconcile" and reconcile is not None:
                exit_code = _tell(name, runner.run(reconcile(config, is_dry_run)), is_dry_run=is_dry_run)
            else:
                runner.run((run_migrations if command == "migrate" else serve)(config))
    except* (
        OSError,
        StorageUnavailableError,
        MigrationRefusedError,
        QueueConfigurationError,
        QueueUnreachableError,
    ) as group:
        exit_code = EXIT_FAILED
        first = _first(group)
        prefix = config.PREFIX if isinstance(first, QueueConfigurationError) else ""
        print(f"{name}: {prefix}{first}", file=sys.stderr)
    finally:
        telemetry.shutdown()
    return exit_code


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


def _tell(name: str, reconciled: Reconciled, *, is_dry_run: bool) -> int:
    for what in reconciled.found:
        print(f"{'found' if is_dry_run else 'put right'}: {what}")
    for error in reconciled.errors:
        print(f"{name}: {error}", file=sys.stderr)
    if reconciled.errors:
        return EXIT_FAILED
    return EXIT_FOUND if reconciled.found else 0
