"""The command line: `python -m mq_namesrv [-c FILE] [-p | -m] [key=value ...]`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read on import; a port in use is explained by us, in one sentence

import telemetry
from mq_namesrv.app import SERVICE, serve
from mq_namesrv.config import FORMAT, NamesrvConfig
from mqproto.config_source import EXIT_BAD_CONFIGURATION, Command, Started

if sys.platform == "win32":
    from asyncio import run
else:
    from uvloop import run

COMMAND = Command(
    name=SERVICE,
    description="The name server of the Hourglass queue.",
    version=version("hourglass-mq-namesrv"),
    file_name="namesrv.conf",
    format=FORMAT,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the name server; returns the exit code: 0 stopped as asked, 1 could not run, 2 bad configuration."""
    return COMMAND.main(arguments, _run)


def _run(started: Started[NamesrvConfig]) -> int:
    try:
        telemetry.configure(SERVICE, started.config.log_level, port=started.config.listen_port)
    except telemetry.TelemetryConfigError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION
    try:
        return run(serve(started))
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    sys.exit(main())
