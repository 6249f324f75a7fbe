"""`python -m <service>` serves; `python -m <service> migrate` brings the database to this version and ends."""

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
from servicekit.errors import StorageUnavailableError

EXIT_FAILED = 1
EXIT_USAGE = 2

ConfigT = TypeVar("ConfigT", bound=ServiceConfig)


def run_service(
    name: str,
    description: str,
    arguments: Sequence[str] | None,
    *,
    from_environment: Callable[[Mapping[str, str]], ConfigT],
    serve: Callable[[ConfigT], Coroutine[Any, Any, None]],
    run_migrations: Callable[[ConfigT], Coroutine[Any, Any, None]],
    service_name: str | None = None,
) -> int:
    """The exit code: 0 after an orderly stop, 1 after a failure, 2 for a configuration that cannot be used.

    Telemetry is set up before anything else and ends last. `name` is the module's; logs, traces and metrics are those
    of `service_name`, where it is another.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {name}", description=description)
    parser.add_argument("command", nargs="?", choices=("serve", "migrate"), default="serve")
    command = parser.parse_args(arguments).command
    try:
        config = from_environment(os.environ)
        telemetry.configure(service_name or name, config.log_level)
    except (ConfigError, telemetry.TelemetryConfigError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return EXIT_USAGE
    action = run_migrations if command == "migrate" else serve
    exit_code = 0
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(action(config))
    except* (OSError, StorageUnavailableError, MigrationRefusedError, QueueConfigurationError) as group:
        exit_code = EXIT_FAILED
        first = _first(group)
        prefix = config.PREFIX if isinstance(first, QueueConfigurationError) else ""
        print(f"{name}: {prefix}{first}", file=sys.stderr)
    finally:
        telemetry.shutdown()
    return exit_code


def _first(error: Exception) -> Exception:
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error
