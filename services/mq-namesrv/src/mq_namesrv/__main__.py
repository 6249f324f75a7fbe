"""The command line: `python -m mq_namesrv [-c FILE] [key=value ...]`."""

from __future__ import annotations

import argparse
import os
import sys
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # read on import; a port in use is explained by us, in one sentence

import telemetry
from mq_namesrv.app import serve
from mq_namesrv.config import NamesrvConfig, parse_config
from mqproto.conf import ConfigError, parse_properties, read_properties

if sys.platform == "win32":
    from asyncio import run
else:
    from uvloop import run

SERVICE = "mq-namesrv"


def main(arguments: list[str] | None = None) -> int:
    """Run the name server; returns the exit code: 0 stopped as asked, 1 could not run, 2 bad configuration."""
    try:
        config = _parse(arguments)
    except ConfigError as error:
        print(f"{SERVICE}: {error}", file=sys.stderr)
        return 2
    telemetry.configure(SERVICE, config.log_level)
    return run(serve(config))


def _parse(arguments: list[str] | None) -> NamesrvConfig:
    parser = argparse.ArgumentParser(prog=SERVICE, description="The name server of the Hourglass queue.")
    parser.add_argument("-c", "--config-file", type=Path, metavar="FILE", help="key=value lines, as in namesrv.conf")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="win over the file, such as listenPort=9877")
    parser.add_argument("--version", action="version", version=f"%(prog)s {version('hourglass-mq-namesrv')}")
    options = parser.parse_args(arguments)
    pairs = read_properties(options.config_file) if options.config_file else {}
    return parse_config(pairs | parse_properties(options.overrides, "command line"))


if __name__ == "__main__":
    sys.exit(main())
