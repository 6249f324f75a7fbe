"""The command line: `python -m mq_broker [-c FILE] [-n host:port;host:port] [-p | -m] [key=value ...]`."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read on import; `app` explains a port in use in one sentence

import telemetry
from mq_broker import __version__
from mq_broker.app import SERVICE, serve
from mq_broker.config import FORMAT, BrokerConfig
from mqproto.config_source import EXIT_BAD_CONFIGURATION, Command, Started
from mqproto.grpc_options import FRAME_BYTES_MAX
from osenv.process import set_malloc_trim_threshold

if sys.platform == "win32":
    from asyncio import run
else:
    from uvloop import run

FREED_BYTES_KEPT = 8 * 1024 * 1024  # the buffers of a few frames under way

COMMAND = Command(
    name=SERVICE,
    description="The broker of the Hourglass queue.",
    version=__version__,
    file_name="broker.conf",
    format=FORMAT,
    has_name_servers=True,
)


def main(arguments: list[str] | None = None) -> int:
    """Run the broker; returns 0 stopped as asked, 1 could not start, 2 bad configuration, 3 the disk failed."""
    return COMMAND.main(arguments, _run)


def _run(started: Started[BrokerConfig]) -> int:
    try:
        telemetry.configure(SERVICE, started.config.log_level, port=started.config.listen_port)
    except telemetry.TelemetryConfigError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIGURATION
    try:
        set_malloc_trim_threshold(FREED_BYTES_KEPT, FRAME_BYTES_MAX)
        return run(serve(started))
    finally:
        telemetry.shutdown()


if __name__ == "__main__":
    sys.exit(main())
